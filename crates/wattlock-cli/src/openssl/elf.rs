//! Whether a program can meet the provider at all: which libcrypto it is linked with, read from its ELF headers and
//! those of the libraries it names. Nothing is executed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::elf::{
    DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64, PT_LOAD,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind};
use serde::Serialize;

/// How a program gets its cryptography.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Linked {
    /// It loads `libcrypto.so.3` or a later one, as every provider needs.
    Dynamically,
    /// It loads a libcrypto from before there were providers.
    BeforeProviders,
    /// It loads no library at all.
    Statically,
    /// None of the libraries it names is a libcrypto; it may load one while it runs.
    NotSeen,
    /// It has an OpenSSL of its own inside, which has its own file and loads no module made for another.
    Inside,
    /// It tells libcrypto to read another section of `openssl.cnf` than `openssl_conf`.
    OtherSection,
    /// It tells libcrypto to read another file.
    OtherFile,
}

/// What a program that has settings of its own for libcrypto imports, or has inside with OpenSSL (OPENSSL_init_crypto(3)).
const SECTION: &[u8] = b"\0OPENSSL_INIT_set_config_appname\0";
const FILE: &[u8] = b"\0OPENSSL_INIT_set_config_filename\0";
/// What every libcrypto says of itself: `OpenSSL 3.0.19 27 Jan 2026`.
const VERSION: &[u8] = b"\0OpenSSL ";
/// The section that Node.js reads.
pub const NODE: &str = "nodejs_conf";

/// What an ELF file names.
#[derive(Debug, Default)]
struct Needs {
    libraries: Vec<String>,
    folders: Vec<PathBuf>,
    wide: bool,
    section: bool,
    file: bool,
    inside: bool,
}

impl Needs {
    /// Takes in what the file's bytes say, if it is not OpenSSL's own.
    fn look(&mut self, data: &[u8]) {
        let has = |wanted: &[u8]| memchr::memmem::find(data, wanted).is_some();
        self.section = has(SECTION) || has(NODE.as_bytes());
        self.file = has(FILE);
        self.inside = memchr::memmem::find_iter(data, VERSION)
            .any(|at| data.get(at + VERSION.len()).is_some_and(u8::is_ascii_digit));
    }
}

/// How a program is linked.
///
/// # Errors
/// A file that cannot be read or is no ELF file.
pub fn linked(program: &Path) -> Result<Linked> {
    let needs = read(program)?;
    let mut verdict = if needs.libraries.is_empty() { Linked::Statically } else { Linked::NotSeen };
    let (mut section, mut file, mut inside) = (false, false, false);
    let mut seen = HashSet::new();
    let mut open = vec![needs];
    while let Some(needs) = open.pop() {
        section |= needs.section;
        file |= needs.file;
        inside |= needs.inside;
        for name in &needs.libraries {
            let version = name.strip_prefix("libcrypto.so.");
            if let Some(version) = version {
                let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
                verdict = match verdict {
                    Linked::Dynamically => Linked::Dynamically,
                    _ if major >= 3 => Linked::Dynamically,
                    _ => Linked::BeforeProviders,
                };
            }
            // What OpenSSL itself has inside says nothing of the program.
            let its_own = version.is_some() || name.starts_with("libssl.so.");
            if seen.insert(name.clone())
                && !its_own
                && let Some(library) = find(name, &needs).and_then(|path| read(&path).ok())
            {
                open.push(library);
            }
        }
    }
    Ok(match verdict {
        Linked::NotSeen if inside => Linked::Inside,
        Linked::Dynamically if section => Linked::OtherSection,
        Linked::Dynamically if file => Linked::OtherFile,
        other => other,
    })
}

/// Whether the program, or a library that it names, knows Node.js' section.
pub fn is_node(program: &Path) -> bool {
    let Ok(needs) = read(program) else { return false };
    let libraries = needs.libraries.iter().filter_map(|name| find(name, &needs));
    let knows = |path: &Path| {
        std::fs::read(path).is_ok_and(|data| memchr::memmem::find(&data, NODE.as_bytes()).is_some())
    };
    libraries.chain([program.to_owned()]).any(|path| knows(&path))
}

/// Where the dynamic linker would most likely find a library (ld.so(8), without its cache).
fn find(name: &str, needs: &Needs) -> Option<PathBuf> {
    let usual: &[&str] = if needs.wide {
        &[
            "/lib/x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu",
            "/lib/aarch64-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/lib",
            "/usr/local/lib",
        ]
    } else {
        &["/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu", "/lib", "/usr/lib"]
    };
    let folders = needs.folders.iter().cloned().chain(usual.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn read(path: &Path) -> Result<Needs> {
    let data = std::fs::read(path).with_context(|| path.display().to_string())?;
    let folder =
        path.canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned())).unwrap_or_default();
    let needs = match FileKind::parse(&*data) {
        Ok(FileKind::Elf64) => needs::<FileHeader64<Endianness>>(&data, &folder),
        Ok(FileKind::Elf32) => needs::<FileHeader32<Endianness>>(&data, &folder),
        _ => bail!("{}: not an ELF program", path.display()),
    };
    let mut needs = needs.with_context(|| format!("{}: not a whole ELF program", path.display()))?;
    needs.look(&data);
    Ok(needs)
}

fn needs<Elf: FileHeader<Endian = Endianness>>(data: &[u8], folder: &Path) -> Result<Needs> {
    let header = Elf::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut found = Needs { wide: header.is_class_64(), ..Needs::default() };
    for segment in segments {
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        let entries: Vec<(i64, u64)> = entries
            .iter()
            .map(|entry| (entry.d_tag(endian).into(), entry.d_val(endian).into()))
            .take_while(|(tag, _)| *tag != DT_NULL)
            .collect();
        let value = |wanted: i64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let (Some(at), Some(len)) = (value(DT_STRTAB), value(DT_STRSZ)) else { continue };
        let strings = segments.iter().find_map(|segment| {
            let load = segment.p_type(endian) == PT_LOAD;
            segment.data_range(endian, data, at, len).ok().flatten().filter(|_| load)
        });
        let strings = strings.context("no table of names")?;
        let text = |offset: u64| {
            let rest = strings.get(offset as usize..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            String::from_utf8_lossy(&rest[..end]).into_owned()
        };
        for (tag, value) in &entries {
            if *tag == DT_NEEDED {
                found.libraries.push(text(*value));
            } else if *tag == DT_RUNPATH || *tag == DT_RPATH {
                let own = folder.to_string_lossy();
                let paths = text(*value).replace("${ORIGIN}", &own).replace("$ORIGIN", &own);
                found.folders.extend(paths.split(':').map(PathBuf::from));
            }
        }
    }
    Ok(found)
}
