//! What a copy has of its own: in front what nginx's processes are, at the end of `http` what nginx would take from
//! its defaults.

use std::net::SocketAddr;
use std::path::Path;

use wattlock_shell::nginx::conf::Directive;
use wattlock_shell::nginx::server::TEMPORARY;

use super::copy::Plan;

/// A directive of our own.
fn own(words: &[&str]) -> Directive {
    Directive { words: words.iter().map(|word| (*word).to_owned()).collect(), file: 0, line: 0, block: None }
}

fn own_block(words: &[&str], block: Vec<Directive>) -> Directive {
    Directive { block: Some(block), ..own(words) }
}

/// Whether a block has a directive.
pub fn has(block: &[Directive], name: &str) -> bool {
    block.iter().any(|one| one.name() == name)
}

/// What stands in front.
pub fn head(plan: &Plan<'_>, body: &[Directive]) -> Vec<Directive> {
    let at = |name: &str| plan.folder.join(name).display().to_string();
    let mut head = vec![
        own(&["daemon", "off"]),
        own(&["master_process", "on"]),
        own(&["worker_processes", &plan.workers.to_string()]),
        own(&["pid", &at("pid")]),
        own(&["lock_file", &at("lock")]),
        own(&["error_log", &at("error.log"), "notice"]),
    ];
    if let Some(module) = plan.module {
        head.push(own(&["load_module", &module.display().to_string()]));
    }
    if let Some(core) = plan.core {
        head.push(own(&["worker_cpu_affinity", &format!("1{}", "0".repeat(core))]));
    }
    if !has(body, "worker_rlimit_nofile") {
        head.push(own(&["worker_rlimit_nofile", "16384"]));
    }
    head
}

/// Limits of the status page's own, in place of `http`'s: an empty key is never counted (ngx_http_limit_req_module).
/// This program does not send the header that is the key.
fn limits() -> [(&'static str, &'static str, [Directive; 2]); 2] {
    const KEY: &str = "$http_wattlock_no_such_header";
    let requests = [
        own(&["limit_req_zone", KEY, "zone=wattlock_status_requests:1m", "rate=1r/s"]),
        own(&["limit_req", "zone=wattlock_status_requests"]),
    ];
    let connections = [
        own(&["limit_conn_zone", KEY, "zone=wattlock_status_connections:1m"]),
        own(&["limit_conn", "wattlock_status_connections", "1"]),
    ];
    [("limit_req", "http_limit_req_module", requests), ("limit_conn", "http_limit_conn_module", connections)]
}

/// What stands at the end of `http`: what nginx would take elsewhere if nothing were said.
pub fn http_tail(plan: &Plan<'_>, http: &[Directive], status: Option<SocketAddr>) -> Vec<Directive> {
    let at = |folder: &Path, name: &str| folder.join(name).display().to_string();
    let mut tail = Vec::new();
    for (directive, module) in TEMPORARY {
        if !plan.nginx.lacks(module) {
            tail.push(own(&[directive, &at(plan.spool, directive)]));
        }
    }
    if !has(http, "access_log") {
        tail.push(own(&["access_log", &at(plan.folder, "access.log")]));
    }
    if !has(http, "root") {
        tail.push(own(&["root", &at(plan.prefix, "html")]));
    }
    if let Some(status) = status {
        if !has(http, "wattlock") {
            tail.push(own(&["wattlock", "on"]));
        }
        let mut page = vec![own(&["wattlock_status"])];
        if !plan.nginx.lacks("http_access_module") {
            // Whatever `http` denies.
            page.extend([own(&["satisfy", "any"]), own(&["allow", "all"])]);
        }
        for (directive, module, [zone, limit]) in limits() {
            if has(http, directive) && !plan.nginx.lacks(module) {
                tail.push(zone);
                page.push(limit);
            }
        }
        page.push(own(&["limit_rate", "0"]));
        let location = own_block(&["location", "=", "/wattlock_status"], page);
        // Also where the site has `wattlock off` for all of `http`: the module says here whether it is active.
        let server = vec![
            own(&["listen", &status.to_string()]),
            own(&["access_log", "off"]),
            own(&["wattlock", "on"]),
            location,
        ];
        tail.push(own_block(&["server"], server));
    }
    tail
}
