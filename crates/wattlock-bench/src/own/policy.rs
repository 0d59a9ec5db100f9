//! What becomes of each directive in a copy of a configuration, as data: nginx's own directives by name (nginx.org's
//! index, to 1.29) and a few of modules that only change headers or compress.
//!
//! A name that is in no row is refused. So are those that run code (Lua, Perl, njs, XSLT, WebAssembly): what they
//! write, or whom they ask, is not in the configuration. Contexts and values are nginx's to check.

/// What becomes of a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays as it is.
    Stays,
    /// It stays, and its block is looked at.
    Block,
    /// It stays with its block, whose rows are values.
    Rows,
    /// It stays; its first argument is a file, relative to the configuration's folder.
    FileOfConfig,
    /// It stays; its first argument is a file or folder, relative to nginx's prefix.
    FileOfPrefix,
    /// The copy has one of its own, or none: processes, logs, names.
    Replaced,
    /// It is left out, and that is said: why.
    LeftOut(&'static str),
    /// A file to which a server of the site writes what it is told.
    Log,
    /// A folder for what a cache keeps.
    Cache,
    /// It hands a request on.
    Pass,
    /// An address to listen on.
    Listens,
    /// Further arguments are looked at.
    Module,
    Environment,
    /// A named group of servers to hand requests on to.
    Upstream,
    /// A directive of Wattlock.
    Wattlock,
}

use Fate::*;

const WRITES: &str = "it writes where it is told";
const ASKS: &str = "it asks another machine";

const ROWS: &[(Fate, &str)] = &[
    (
        Replaced,
        "daemon debug_connection debug_points error_log lock_file master_process pid resolver resolver_timeout \
         ssl_stapling_file ssl_stapling_responder ssl_stapling_verify worker_cpu_affinity worker_priority \
         worker_processes worker_rlimit_core working_directory client_body_temp_path proxy_temp_path fastcgi_temp_path \
         uwsgi_temp_path scgi_temp_path grpc_temp_path",
    ),
    (LeftOut("no mail is handed on"), "mail"),
    (LeftOut("its ports are not opened"), "stream"),
    (LeftOut(ASKS), "ssl_stapling ssl_ocsp ssl_ocsp_cache ssl_ocsp_responder"),
    (
        LeftOut(WRITES),
        "create_full_put_path dav_access dav_methods min_delete_depth google_perftools_profiles ssl_key_log \
         proxy_ssl_key_log grpc_ssl_key_log uwsgi_ssl_key_log proxy_store proxy_store_access fastcgi_store \
         fastcgi_store_access uwsgi_store uwsgi_store_access scgi_store scgi_store_access",
    ),
    (Log, "access_log"),
    (Cache, "proxy_cache_path fastcgi_cache_path uwsgi_cache_path scgi_cache_path"),
    (Pass, "proxy_pass fastcgi_pass uwsgi_pass scgi_pass grpc_pass memcached_pass"),
    (Listens, "listen"),
    (Module, "load_module"),
    (Environment, "env"),
    (Upstream, "upstream"),
    (Block, "events http server location if limit_except"),
    (Rows, "types map geo split_clients charset_map"),
    (FileOfPrefix, "root alias"),
    (
        FileOfConfig,
        "auth_basic_user_file geoip_country geoip_city geoip_org quic_host_key ssl_certificate ssl_certificate_key \
         ssl_client_certificate ssl_crl ssl_dhparam ssl_encrypted_hello_key ssl_password_file ssl_session_ticket_key \
         ssl_trusted_certificate",
    ),
    // The main context and events.
    (
        Stays,
        "user accept_mutex accept_mutex_delay multi_accept pcre_jit ssl_engine ssl_object_cache_inheritable \
         thread_pool timer_resolution use worker_aio_requests worker_connections worker_rlimit_nofile \
         worker_rlimit_sigpending worker_shutdown_timeout",
    ),
    // http's core.
    (
        Stays,
        "absolute_redirect aio aio_write auth_delay chunked_transfer_encoding client_body_buffer_size \
         client_body_in_file_only client_body_in_single_buffer client_body_timeout client_header_buffer_size \
         client_header_timeout client_max_body_size connection_pool_size default_type directio directio_alignment \
         disable_symlinks early_hints error_page etag if_modified_since ignore_invalid_headers internal \
         keepalive_disable keepalive_min_timeout keepalive_requests keepalive_time keepalive_timeout \
         large_client_header_buffers limit_rate limit_rate_after lingering_close lingering_time lingering_timeout \
         log_not_found log_subrequest max_headers max_ranges merge_slashes msie_padding msie_refresh open_file_cache \
         open_file_cache_errors open_file_cache_min_uses open_file_cache_valid output_buffers port_in_redirect \
         postpone_output read_ahead recursive_error_pages request_pool_size reset_timedout_connection satisfy \
         send_lowat send_timeout sendfile sendfile_max_chunk server_name server_name_in_redirect \
         server_names_hash_bucket_size server_names_hash_max_size server_tokens subrequest_output_buffer_size \
         tcp_nodelay tcp_nopush try_files types_hash_bucket_size types_hash_max_size underscores_in_headers \
         variables_hash_bucket_size variables_hash_max_size",
    ),
    // Its modules.
    (
        Stays,
        "add_after_body add_before_body add_header add_header_inherit add_trailer add_trailer_inherit addition_types \
         allow ancient_browser ancient_browser_value auth_basic auth_request auth_request_set autoindex \
         autoindex_exact_size autoindex_format autoindex_localtime break charset charset_types deny empty_gif expires \
         flv geoip_proxy geoip_proxy_recursive gunzip gunzip_buffers gzip gzip_buffers gzip_comp_level gzip_disable \
         gzip_hash gzip_http_version gzip_min_length gzip_no_buffer gzip_proxied gzip_static gzip_types gzip_vary \
         gzip_window http2 http2_body_preread_size http2_chunk_size http2_idle_timeout http2_max_concurrent_pushes \
         http2_max_concurrent_streams http2_max_field_size http2_max_header_size http2_max_requests http2_push \
         http2_push_preload http2_recv_buffer_size http2_recv_timeout http3 http3_hq http3_max_concurrent_streams \
         http3_stream_buffer_size image_filter image_filter_buffer image_filter_interlace image_filter_jpeg_quality \
         image_filter_sharpen image_filter_transparency image_filter_webp_quality index limit_conn limit_conn_dry_run \
         limit_conn_log_level limit_conn_status limit_conn_zone limit_req limit_req_dry_run limit_req_log_level \
         limit_req_status limit_req_zone log_format map_hash_bucket_size map_hash_max_size memcached_bind \
         memcached_buffer_size memcached_connect_timeout memcached_gzip_flag memcached_next_upstream \
         memcached_next_upstream_timeout memcached_next_upstream_tries memcached_read_timeout memcached_send_timeout \
         memcached_socket_keepalive mirror mirror_request_body modern_browser modern_browser_value mp4 \
         mp4_buffer_size mp4_limit_rate mp4_limit_rate_after mp4_max_buffer_size mp4_start_key_frame \
         open_log_file_cache override_charset postpone_gzipping quic_active_connection_id_limit quic_bpf quic_gso \
         quic_retry random_index real_ip_header real_ip_recursive referer_hash_bucket_size referer_hash_max_size \
         return rewrite rewrite_log secure_link secure_link_md5 secure_link_secret set set_real_ip_from slice \
         source_charset ssi ssi_last_modified ssi_min_file_chunk ssi_silent_errors ssi_types ssi_value_length ssl \
         ssl_buffer_size ssl_certificate_cache ssl_certificate_compression ssl_ciphers ssl_conf_command ssl_early_data \
         ssl_ecdh_curve ssl_prefer_server_ciphers ssl_protocols ssl_reject_handshake ssl_session_cache \
         ssl_session_tickets ssl_session_timeout ssl_verify_client ssl_verify_depth stub_status sub_filter \
         sub_filter_last_modified sub_filter_once sub_filter_types uninitialized_variable_warn userid userid_domain \
         userid_expires userid_flags userid_mark userid_name userid_p3p userid_path userid_service valid_referers",
    ),
    // In an `upstream` that stays.
    (Stays, "zone keepalive hash ip_hash least_conn random ntlm"),
    // Of others: headers and compression.
    (
        Stays,
        "brotli brotli_buffers brotli_comp_level brotli_min_length brotli_static brotli_types brotli_window \
         more_clear_headers more_clear_input_headers more_set_headers more_set_input_headers",
    ),
];

/// Where requests are handed on: the first parts of directives' names, and the second ones.
const FRONTS: [&str; 5] = ["proxy_", "fastcgi_", "uwsgi_", "scgi_", "grpc_"];
const BACKS: &[(Fate, &str)] = &[
    (
        Stays,
        "allow_upstream bind bind_dynamic buffer_size buffering buffers busy_buffers_size cache \
         cache_background_update cache_bypass cache_convert_head cache_key cache_lock cache_lock_age \
         cache_lock_timeout cache_max_range_offset cache_methods cache_min_uses cache_revalidate cache_use_stale \
         cache_valid catch_stderr connect_timeout cookie_domain cookie_flags cookie_path force_ranges \
         headers_hash_bucket_size headers_hash_max_size hide_header http_version ignore_client_abort ignore_headers \
         index intercept_errors keep_conn limit_rate max_temp_file_size method modifier1 modifier2 next_upstream \
         next_upstream_timeout next_upstream_tries no_cache param pass_header pass_request_body pass_request_headers \
         pass_trailers read_timeout redirect request_buffering request_dynamic send_lowat send_timeout set_body \
         set_header socket_keepalive socket_rcvbuf socket_sndbuf split_path_info ssl_certificate_cache ssl_ciphers \
         ssl_conf_command ssl_name ssl_protocols ssl_server_name ssl_session_reuse ssl_verify ssl_verify_depth string \
         temp_file_write_size",
    ),
    (FileOfConfig, "ssl_certificate ssl_certificate_key ssl_crl ssl_password_file ssl_trusted_certificate"),
];

/// What becomes of a directive of this name; `None`: it is not known.
pub fn fate(name: &str) -> Option<Fate> {
    if name == "wattlock" || name.starts_with("wattlock_") {
        return Some(Wattlock);
    }
    let back = || {
        let back = FRONTS.iter().find_map(|front| name.strip_prefix(front))?;
        in_rows(BACKS, back)
    };
    in_rows(ROWS, name).or_else(back)
}

/// Modules that do nothing of themselves: nginx's own, and those that Debian packages. Loading a file runs what is in
/// it, with the rights of whoever runs the comparison.
const MODULES: &str = "\
    ngx_google_perftools_module ngx_http_geoip_module ngx_http_image_filter_module ngx_http_js_module \
    ngx_http_perl_module ngx_http_xslt_filter_module ngx_mail_module ngx_otel_module ngx_stream_geoip_module \
    ngx_stream_js_module ngx_stream_module \
    ndk_http_module ngx_http_auth_pam_module ngx_http_brotli_filter_module ngx_http_brotli_static_module \
    ngx_http_cache_purge_module ngx_http_dav_ext_module ngx_http_echo_module ngx_http_fancyindex_module \
    ngx_http_geoip2_module ngx_http_headers_more_filter_module ngx_http_lua_module ngx_http_memc_module \
    ngx_http_modsecurity_module ngx_http_set_misc_module ngx_http_srcache_filter_module \
    ngx_http_subs_filter_module ngx_http_uploadprogress_module ngx_http_upstream_fair_module ngx_nchan_module \
    ngx_rtmp_module ngx_stream_geoip2_module";

/// Whether a module of this file's name may be loaded.
pub fn loads(file: &str) -> bool {
    file.strip_suffix(".so").is_some_and(|name| MODULES.split_whitespace().any(|known| known == name))
}

/// Settings of Wattlock that a copy has not: its counters stay in it.
pub const SETTINGS_LEFT_OUT: [&str; 1] = ["telemetry"];

fn in_rows(rows: &[(Fate, &str)], name: &str) -> Option<Fate> {
    let holds = |names: &str| names.split_whitespace().any(|one| one == name);
    rows.iter().find(|(_, names)| holds(names)).map(|(fate, _)| *fate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_or_asks_or_runs_code_never_stays() {
        let stays =
            |name: &str| matches!(fate(name), Some(Stays | Rows | Block | FileOfConfig | FileOfPrefix));
        for name in [
            "proxy_store",
            "fastcgi_store",
            "dav_methods",
            "access_log",
            "error_log",
            "pid",
            "proxy_temp_path",
            "grpc_temp_path",
            "proxy_cache_path",
            "state",
            "perl",
            "perl_set",
            "perl_modules",
            "js_import",
            "js_content",
            "init_by_lua",
            "content_by_lua_file",
            "lua_package_path",
            "wasm",
            "ssl_stapling",
            "ssl_ocsp",
            "resolver",
            "proxy_pass",
            "auth_http",
            "mail",
            "stream",
            "otel_exporter",
            "mgmt",
            "api",
            "passenger_root",
            "xslt_stylesheet",
            "xml_entities",
            "echo",
            "rtmp",
            "ssl_key_log",
            "proxy_ssl_key_log",
            "working_directory",
            "google_perftools_profiles",
            "include",
            "vhost_traffic_status_dump",
            "",
            "wattlock",
            "zone_sync",
        ] {
            assert!(!stays(name), "{name}");
        }
        assert_eq!(fate("wattlock_gzip"), Some(Wattlock));
        assert_eq!(fate("uwsgi_ssl_crl"), Some(FileOfConfig));
        assert_eq!(fate("fastcgi_param"), Some(Stays));
        assert_eq!(fate("wattlockish"), None);
    }

    #[test]
    fn modules_of_known_names_are_loaded_and_no_others() {
        for known in ["ngx_stream_module.so", "ndk_http_module.so", "ngx_http_brotli_static_module.so"] {
            assert!(loads(known), "{known}");
        }
        for other in
            ["", "x.so", ".so", "ngx_stream_module", "ngx_stream_module.so.1", "evil ngx_mail_module.so"]
        {
            assert!(!loads(other), "{other}");
        }
    }

    #[test]
    fn a_name_has_one_row() {
        let names: Vec<&str> = ROWS.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
        let twice = |at: usize| names[..at].contains(&names[at]);
        let doubled: Vec<&str> = (0..names.len()).filter(|at| twice(*at)).map(|at| names[at]).collect();
        assert_eq!(doubled, [""; 0]);
    }
}
