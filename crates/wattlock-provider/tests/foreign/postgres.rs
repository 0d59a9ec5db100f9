//! PostgreSQL's server, which forks for every client, and `psql`. Skipped, with words, where they are not installed.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;

use super::*;

/// The server refuses to run as root.
const NOBODY: u32 = 65534;

/// The folder of the newest server's programs: Debian has them in no `PATH`.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<_> = versions
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
        })
        .collect();
    folders.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = folders.into_iter().rev().map(|(_, folder)| folder).chain(std::env::split_paths(&path));
    all.find(|folder| ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).exists()))
}

/// Ends it as its manual says, so that no shared memory is left.
struct Database(Server);

impl Drop for Database {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-INT", &self.0.0.id().to_string()]).status();
        let end = Instant::now() + Duration::from_secs(20);
        while matches!(self.0.0.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A host whose files, and the module, may be read by the server's user; and that user's own folders.
fn cluster(folder: &Path) -> (Host, Option<u32>) {
    let host = host();
    let user = (std::fs::metadata("/proc/self").unwrap().uid() == 0).then_some(NOBODY);
    std::fs::set_permissions(host.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let (module, copy) = (common::module(), host.path("libwattlock_provider.so"));
    std::fs::copy(&module, &copy).unwrap();
    let config = String::from_utf8(host.read("with.cnf")).unwrap();
    let config = config.replace(&*module.to_string_lossy(), &copy.to_string_lossy());
    host.write("with.cnf", config.as_bytes());
    for name in ["data", "telemetry"] {
        std::fs::create_dir(host.path(name)).unwrap();
        chown(host.path(name), user, user).unwrap();
    }
    let mut command = host.command(false, folder.join("initdb").to_str().unwrap());
    command.args("-D data -U postgres -A trust --locale=C -E UTF8 --no-sync".split(' '));
    let output = as_user(&mut command, user).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for name in CERTIFICATES {
        let key = host.path(&format!("data/{name}.key"));
        std::fs::copy(host.path(&format!("{name}.key")), &key).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        chown(&key, user, user).unwrap();
    }
    (host, user)
}

fn as_user(command: &mut Command, user: Option<u32>) -> &mut Command {
    match user {
        Some(user) => command.uid(user).gid(user),
        None => command,
    }
}

#[test]
fn psql_and_the_server_agree_with_either_side_ours() {
    let Some(folder) = programs() else {
        return eprintln!("skipped: PostgreSQL (initdb, postgres, psql) is not installed");
    };
    let (host, user) = cluster(&folder);
    let telemetry = host.path("telemetry");
    // Larger than a record by far, both ways. A backend counts in the file of the server that it was forked from.
    let long = "wattlock".repeat(100_000);
    let script = format!(
        "select version, cipher from pg_stat_ssl where ssl and pid = pg_backend_pid();\n\
         select '{long}' = repeat('wattlock', 100000);\n\
         select repeat('wattlock', 100000);\n\
         select count(*) > 0 from pg_ls_dir('{}') name where name ~ '^[0-9]+-[0-9]+$';\n\
         \\! grep -q libwattlock_provider /proc/$PPID/maps && echo loaded || echo not loaded\n",
        telemetry.display()
    );
    host.write("script.sql", script.as_bytes());
    for (server, ours) in SIDES {
        for certificate in CERTIFICATES {
            // What the server before left, marked as ended.
            for left in std::fs::read_dir(&telemetry).into_iter().flatten() {
                std::fs::remove_file(left.unwrap().path()).unwrap();
            }
            let port = port();
            let mut command = host.command(server, folder.join("postgres").to_str().unwrap());
            command.env("WATTLOCK_TELEMETRY_DIR", &telemetry).args(["-D", "data", "-p", &port.to_string()]);
            for setting in [
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "fsync=off",
                "ssl=on",
                &format!("ssl_cert_file={}", host.path(&format!("{certificate}.crt")).display()),
                &format!("ssl_key_file={certificate}.key"),
            ] {
                command.args(["-c", setting]);
            }
            let log = std::fs::File::create(host.path("log")).unwrap();
            as_user(&mut command, user).stdout(log.try_clone().unwrap()).stderr(log);
            let database = Database(Server::start(&mut command, port));
            assert_eq!(database.0.loaded(), server);
            // It listens before it answers: until then psql is told that the database system is starting up.
            until(&host, "log", "ready to accept connections", 1);
            for version in ["TLSv1.2", "TLSv1.3"] {
                let address = format!(
                    "host=localhost hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres \
                     sslmode=verify-full sslrootcert=all.crt ssl_max_protocol_version={version}"
                );
                let mut command = host.command(ours, "timeout");
                command.env("WATTLOCK_TELEMETRY_DIR", host.path("client"));
                command.arg("60").arg(folder.join("psql"));
                command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "script.sql", "-d", &address]);
                let output = command.output().unwrap();
                let told = text(&output);
                let short = told.replace(&long, "LONG");
                assert!(output.status.success(), "{address}: {short}\n{}", said(&host, "log"));
                let lines: Vec<&str> = short.lines().collect();
                let truth = |so| if so { "t" } else { "f" };
                let words = if ours { "loaded" } else { "not loaded" };
                let (first, rest) = lines.split_first().unwrap();
                assert!(first.starts_with(&format!("{version}|")), "{address}: {short}");
                assert_eq!(rest, ["t", "LONG", truth(server), words], "{address}: {short}");
            }
        }
    }
}
