//! Where things are: the nginx program and what it was built with, the module, the provider.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

use crate::parts::{self, EMULATED, First, MODULE, PROVIDER};
use crate::setup::Choice;
use crate::text::typed;

/// Installs packages whose names are its arguments.
const INSTALL: &str = include_str!("install.sh");

/// What every command about nginx may be told.
#[derive(Debug, Clone, Default, Args)]
pub struct Places {
    /// The nginx program; without it, what PATH and the usual folders have
    #[arg(long, value_name = "PATH")]
    pub nginx: Option<PathBuf>,
    /// Wattlock's module for that nginx; without it, the one built with this program or the installed one (`nginx
    /// enable` prefers the installed one)
    #[arg(long, value_name = "PATH")]
    pub module: Option<PathBuf>,
    /// Wattlock's provider; without it, the one built with this program or the installed one
    #[arg(long, value_name = "PATH")]
    pub provider: Option<PathBuf>,
    /// Folder with the libssl and libcrypto that nginx is to load, in place of the system's
    #[arg(long, value_name = "DIR")]
    pub openssl_lib: Option<PathBuf>,
}

/// An nginx program and what it says of itself.
#[derive(Debug, Clone)]
pub struct Nginx {
    /// The program.
    pub program: PathBuf,
    /// Its version: major, minor, patch.
    pub version: [u32; 3],
    /// What `nginx -V` prints.
    pub built: String,
    /// Folder of the libssl it is to load, if not the system's.
    pub libraries: Option<PathBuf>,
}

/// The two files that make an nginx use Wattlock.
#[derive(Debug, Clone)]
pub struct Parts {
    /// nginx's module.
    pub module: PathBuf,
    /// OpenSSL's provider.
    pub provider: PathBuf,
    /// Further lines of the provider's section in `openssl.cnf`.
    pub settings: Vec<(String, String)>,
}

impl Places {
    /// Finds nginx and asks it what it is.
    ///
    /// # Errors
    /// None found, or what was found is no nginx that can do TLS.
    pub fn nginx(&self) -> Result<Nginx> {
        let program = match &self.nginx {
            Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
            None => search("nginx").context(
                "no nginx found: install it (Debian, Ubuntu: `apt-get install nginx`; `wattlock serve --install DIR` \
                 does so without letting its service start), or say --nginx PATH",
            )?,
        };
        Nginx::ask(program, self.openssl_lib.clone())
    }

    /// Installs nginx by apt if none is found and none is named. Its own service is left off. Blocks while apt works.
    ///
    /// # Errors
    /// This is no Debian or Ubuntu, or apt failed; it has said why.
    pub fn install(&self) -> Result<()> {
        if self.nginx.is_some() || search("nginx").is_some() {
            return Ok(());
        }
        let done = Command::new("sh").args(["-c", INSTALL, "install.sh", "nginx"]).status().context("sh")?;
        ensure!(done.success(), "nginx could not be installed");
        Ok(())
    }

    /// Finds the module and the provider.
    ///
    /// # Errors
    /// One is missing.
    pub fn parts(&self, nginx: &Nginx, choice: &Choice) -> Result<Parts> {
        Ok(Parts {
            module: self.module(nginx, First::Built)?,
            provider: self.provider(choice)?,
            settings: settings(choice)?,
        })
    }

    /// Finds the module; among those in the build folder one built for this very version first.
    ///
    /// # Errors
    /// It is missing.
    pub fn module(&self, nginx: &Nginx, first: First) -> Result<PathBuf> {
        let built = Path::new("../nginx");
        let built = [built.join(nginx.release()), PathBuf::new(), built.to_owned()];
        own(
            self.module.as_deref(),
            MODULE,
            &built,
            first,
            "`nginx/build.sh` builds it (`make run` does, too), the package libnginx-mod-http-wattlock has it",
        )
    }

    /// Finds the provider; for `--emulate` the one with emulated cards.
    ///
    /// # Errors
    /// It is missing.
    pub fn provider(&self, choice: &Choice) -> Result<PathBuf> {
        let (name, how) = match choice.emulate {
            None => {
                (PROVIDER, "`cargo build --release -p wattlock-provider` builds it (`make run` does, too)")
            }
            Some(_) => {
                (EMULATED, "`cargo build --release -p wattlock-emulated` builds it (`make run` does, too)")
            }
        };
        own(self.provider.as_deref(), name, &[PathBuf::new()], First::Built, how)
    }
}

/// A file named by the user, or what [`parts::find`] finds.
fn own(given: Option<&Path>, name: &str, built: &[PathBuf], first: First, how: &str) -> Result<PathBuf> {
    given.map_or_else(|| parts::find(name, built, first, how), parts::named)
}

/// The command line's engines and policy, as settings of the provider.
///
/// # Errors
/// One that cannot stand in a configuration.
pub fn settings(choice: &Choice) -> Result<Vec<(String, String)>> {
    let mut settings = vec![("policy", choice.policy.clone()), ("objective", typed(&choice.objective))];
    if !choice.settings.is_empty() {
        settings.push(("thresholds", choice.settings.join(",")));
    }
    if let Some(model) = &choice.emulate {
        let file = Path::new(model).canonicalize().ok().filter(|file| file.is_file());
        settings.push((
            "emulate",
            file.map_or_else(|| model.clone(), |file| file.to_string_lossy().into_owned()),
        ));
    }
    for (key, value) in &settings {
        plain(value).with_context(|| format!("setting {key}"))?;
    }
    Ok(settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Refuses text that means something else inside a configuration of nginx or OpenSSL than what it says.
///
/// # Errors
/// The text and the character.
pub fn plain(text: &str) -> Result<()> {
    let odd = text.chars().find(|c| c.is_control() || "\"'`$#;{}\\".contains(*c));
    match odd {
        Some(odd) => {
            bail!("`{}` contains {odd:?}, which cannot stand in a configuration", text.escape_debug())
        }
        None => Ok(()),
    }
}

/// A program on PATH, or where daemons live.
fn search(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|folder| folder.join(name)).find(|path| path.is_file())
}

impl Nginx {
    fn ask(program: PathBuf, libraries: Option<PathBuf>) -> Result<Nginx> {
        let mut nginx = Nginx { program, version: [0; 3], built: String::new(), libraries };
        let said = nginx.command().arg("-V").output().with_context(|| nginx.program.display().to_string())?;
        nginx.built = String::from_utf8_lossy(&said.stderr).into_owned();
        nginx.version = version(&nginx.built)
            .with_context(|| format!("{}: `-V` does not answer as nginx does", nginx.program.display()))?;
        ensure!(
            nginx.built.contains("--with-http_ssl_module"),
            "{}: built without TLS (--with-http_ssl_module)",
            nginx.program.display()
        );
        Ok(nginx)
    }

    /// Its version as people write it: `1.22.1`.
    pub fn release(&self) -> String {
        self.version.map(|number| number.to_string()).join(".")
    }

    /// The program, with the libraries it is to load.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(folder) = &self.libraries {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command
    }

    /// The value of an option that it was built with, such as `--prefix=`.
    pub fn built_with(&self, option: &str) -> Option<&str> {
        self.built.split(option).nth(1).and_then(|rest| rest.split_whitespace().next())
    }

    /// Whether it was built without a module that is otherwise always there.
    pub fn lacks(&self, module: &str) -> bool {
        self.built.contains(&format!("--without-{module}"))
    }

    /// What stands between this program and the module's bridge, if anything.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn obstacle(&self) -> Result<Option<String>> {
        let data = std::fs::read(&self.program).with_context(|| self.program.display().to_string())?;
        Ok(obstacle(&data))
    }
}

/// Why a program's libssl calls cannot be bridged: nginx must import what the module's bridge replaces, and it does so
/// only if libssl is a shared library to it.
fn obstacle(program: &[u8]) -> Option<String> {
    let Ok(elf) = ElfFile64::<object::Endianness>::parse(program) else {
        return Some("it is no 64-bit ELF program".to_owned());
    };
    let imports = elf.imports().unwrap_or_default();
    // Without those that an nginx need not import (wattlock_bridge.c).
    const NEEDED: [&str; 7] = [
        "SSL_get_error",
        "SSL_set_ex_data",
        "SSL_free",
        "SSL_do_handshake",
        "SSL_read",
        "SSL_write",
        "SSL_shutdown",
    ];
    let missing =
        NEEDED.into_iter().find(|name| !imports.iter().any(|import| import.name() == name.as_bytes()));
    missing.map(|name| {
        format!(
            "it does not import {name}: libssl is linked in statically, and Wattlock cannot reach it there"
        )
    })
}

/// Which version of Wattlock a module is of; `nginx/build.sh` writes it into a section of its own.
pub fn module_version(module: &Path) -> Option<String> {
    let data = std::fs::read(module).ok()?;
    let elf = ElfFile64::<object::Endianness>::parse(&*data).ok()?;
    let section = elf.section_by_name(".wattlock.version")?;
    Some(String::from_utf8_lossy(section.data().ok()?).into_owned())
}

fn version(text: &str) -> Option<[u32; 3]> {
    let rest = text.split_once("nginx/")?.1;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("nginx version: nginx/1.22.1\nbuilt"), Some([1, 22, 1]));
        assert_eq!(version("nginx version: nginx/1.29.0 (Ubuntu)"), Some([1, 29, 0]));
        assert_eq!(version("Apache/2.4"), None);
    }

    #[test]
    fn a_program_that_imports_no_libssl_is_an_obstacle() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(obstacle(&own).unwrap().contains("SSL_get_error"));
        assert!(obstacle(b"#!/bin/sh").unwrap().contains("ELF"));
    }

    #[test]
    fn what_would_change_a_configuration_is_refused() {
        assert!(plain("/srv/my files/a-b_c.d,e=f").is_ok());
        for odd in ["a;b", "a\nb", "$x", "a#b", "\"", "a\\", "}"] {
            assert!(plain(odd).is_err(), "{odd}");
        }
    }
}
