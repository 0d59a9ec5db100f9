//! A service's unit as systemd reads it (systemd.unit(5), systemd.service(5)): the file, and the drop-ins of all
//! folders in the order of their names. Of it only what a service starts and what environment it is given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where units are, the most important first.
const FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// What a unit says of its service.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// `ExecStart`, as written.
    pub start: Vec<String>,
    /// Files of `EnvironmentFile`.
    pub files: Vec<PathBuf>,
    /// The file that sets `OPENSSL_CONF`.
    pub sets: Option<PathBuf>,
}

/// Reads a service's unit; `own` is a drop-in that is passed over. `None` if there is no such unit, or it is masked.
pub fn read(name: &str, own: &Path) -> Option<Unit> {
    read_in(&FOLDERS.map(Path::new), name, own)
}

fn read_in(folders: &[&Path], name: &str, own: &Path) -> Option<Unit> {
    let file =
        folders.iter().map(|folder| folder.join(format!("{name}.service"))).find(|file| file.exists())?;
    let text = std::fs::read_to_string(&file).ok().filter(|text| !text.is_empty())?;
    let mut unit = Unit::default();
    unit.take(&text, &file);
    let mut dropins = BTreeMap::new();
    for folder in folders {
        let entries =
            std::fs::read_dir(folder.join(format!("{name}.service.d"))).into_iter().flatten().flatten();
        for path in
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "conf"))
        {
            dropins.entry(path.file_name().unwrap_or_default().to_owned()).or_insert(path);
        }
    }
    for path in dropins.into_values().filter(|path| path != own) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        unit.take(&text, &path);
    }
    Some(unit)
}

impl Unit {
    fn take(&mut self, text: &str, file: &Path) {
        let mut section = "";
        let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';']) || line.is_empty() {
                continue;
            }
            if line.starts_with('[') {
                section = if line == "[Service]" { "Service" } else { "" };
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| section == "Service") else { continue };
            let (key, value) = (key.trim(), value.trim());
            let list = match key {
                "ExecStart" => &mut self.start,
                "EnvironmentFile" => {
                    self.files.push(PathBuf::from(value.trim_start_matches('-')));
                    continue;
                }
                "Environment" => {
                    let mut words = value.split(|c: char| c.is_whitespace() || c == '"' || c == '\'');
                    if words.any(|word| word.starts_with("OPENSSL_CONF=")) {
                        self.sets = Some(file.to_owned());
                    }
                    continue;
                }
                _ => continue,
            };
            match value.is_empty() {
                true => list.clear(),
                false => list.push(value.to_owned()),
            }
        }
    }

    /// Whether it starts this program.
    pub fn starts(&self, program: &Path) -> bool {
        self.lines(program).next().is_some()
    }

    /// The lines that start this program.
    fn lines(&self, program: &Path) -> impl Iterator<Item = &String> {
        self.start.iter().filter(move |line| {
            let word = line.trim_start_matches(['@', '-', ':', '+', '!']).split_whitespace().next();
            word.is_some_and(|word| Path::new(word).canonicalize().is_ok_and(|path| path == program))
        })
    }

    /// What follows an option of one letter where it starts this program.
    pub fn option(&self, program: &Path, option: &str) -> Option<String> {
        self.lines(program).find_map(|line| {
            let mut words = line.split_whitespace().skip(1).skip_while(|word| !word.starts_with(option));
            let joined = words.next()?.strip_prefix(option).unwrap_or_default();
            let value = if joined.is_empty() { words.next().unwrap_or_default() } else { joined };
            Some(value.trim_matches(['"', '\'']).to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "[Unit]\nExecStart=/no\n[Service]\nType=forking\nExecStartPre=/usr/sbin/nginx -t -q -g 'daemon on; \
                          master_process on;'\nExecStart=/bin/sh -g 'x'\n[Install]\nExecStartPre=/no\n";

    #[test]
    fn dropins_of_all_folders_count_in_the_order_of_their_names() {
        let root = tempfile::tempdir().unwrap();
        let [etc, lib] = ["etc", "lib"].map(|name| root.path().join(name));
        let put = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let own = etc.join("nginx.service.d/wattlock.conf");
        let read = || read_in(&[&etc, &lib], "nginx", &own);
        assert_eq!(read(), None);
        put(lib.join("nginx.service"), DEBIAN);
        let unit = read().unwrap();
        assert_eq!(unit.start, ["/bin/sh -g 'x'"]);
        assert!(unit.starts(&Path::new("/bin/sh").canonicalize().unwrap()) && !unit.starts(Path::new("/no")));

        put(lib.join("nginx.service.d/b.conf"), "[Service]\nExecStart=\nExecStart=one \\\n  two\n");
        put(etc.join("nginx.service.d/a.conf"), "[Service]\nExecStart=lost\nEnvironmentFile=-/f\n");
        put(own.clone(), "[Service]\nExecStart=ours\nEnvironment=OPENSSL_CONF=/ours\n");
        put(etc.join("nginx.service.d/z.conf"), "[Service]\n; Environment=OPENSSL_CONF=/x\n");
        let unit = read().unwrap();
        assert_eq!(
            (unit.start, unit.files, unit.sets),
            (vec!["one    two".to_owned()], vec!["/f".into()], None)
        );
        put(etc.join("nginx.service.d/b.conf"), "[Service]\nEnvironment=\"A=b\" \"OPENSSL_CONF=/x\"\n");
        let unit = read().unwrap();
        assert_eq!(
            unit.sets,
            Some(etc.join("nginx.service.d/b.conf")),
            "of two of a name the first folder's counts"
        );
        assert_eq!(unit.start.last().map(String::as_str), Some("lost"));
        let start = ["@/bin/sh sh -q -c '/a.conf' -p/x".to_owned()].to_vec();
        let (unit, shell) = (Unit { start, ..Unit::default() }, Path::new("/bin/sh").canonicalize().unwrap());
        let options = ["-c", "-p", "-g"].map(|option| unit.option(&shell, option));
        assert_eq!(options, [Some("/a.conf".to_owned()), Some("/x".to_owned()), None]);
        put(etc.join("nginx.service"), "");
        assert_eq!(read(), None, "masked");
    }
}
