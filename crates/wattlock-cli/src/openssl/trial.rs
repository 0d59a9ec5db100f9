//! The `openssl` program under a configuration: what it says of itself and of our provider, and whether operations done
//! with the provider are understood without it.
//!
//! Each question is a fresh process, so a module that ends its host ends nothing else; one that does not answer within
//! [`PATIENCE`] is ended.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a command said.
pub(super) struct Said {
    good: bool,
    out: Vec<u8>,
    pub(super) err: String,
}

/// `arguments` are words with a space between.
fn openssl(configuration: Option<&Path>, folder: &Path, arguments: &str) -> Result<Said> {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' '));
    command.env("OPENSSL_CONF", configuration.unwrap_or(Path::new("/dev/null")));
    said(command, folder, PATIENCE)
}

/// Runs a program in a folder, for so long at most.
pub(super) fn said(mut command: Command, folder: &Path, patience: Duration) -> Result<Said> {
    let (out, err) = (folder.join(".out"), folder.join(".err"));
    let name = command.get_program().to_string_lossy().into_owned();
    command.current_dir(folder).stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound if name == "openssl" => {
            anyhow!("there is no program `openssl` here, which tells what OpenSSL there is")
        }
        _ => anyhow!("{name}: {error}"),
    })?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            bail!("{name} gave no answer within {} s", patience.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut said = Said {
        good: status.success(),
        out: std::fs::read(&out)?,
        err: String::from_utf8_lossy(&std::fs::read(&err)?).into_owned(),
    };
    if status.code().is_none() {
        said.err = format!("it was ended by a signal ({status})");
    }
    Ok(said)
}

/// The lines of an error that tell why: the words after the last colon of OpenSSL's own form, ours first.
fn why(err: &str) -> String {
    let ours = err.lines().find_map(|line| line.split_once(":wattlock: ").map(|(_, words)| words));
    let loading = err.lines().find_map(|line| line.split_once("filename(").map(|(_, words)| words));
    let loading = loading.and_then(|words| words.split_once("): ").map(|(_, words)| words));
    let any = err.lines().find(|line| !line.trim().is_empty() && !line.starts_with("Hint"));
    let any = any.map_or("it gave no reason", reason);
    ours.or(loading).unwrap_or(any).trim().to_owned()
}

/// The reason in `thread:error:code:library:function:reason:file:line:data` (ERR_error_string(3)).
fn reason(line: &str) -> &str {
    let mut fields = line.split(':');
    match (fields.nth(1), fields.nth(3)) {
        (Some("error"), Some(reason)) if !reason.is_empty() => reason,
        _ => line,
    }
}

/// What `openssl version` says of the library: `3.0.19`.
///
/// # Errors
/// No such program.
pub fn version() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let said = openssl(None, folder.path(), "version")?;
    let text = String::from_utf8_lossy(&said.out).into_owned();
    let library = text.split_once("Library: ").map_or(text.as_str(), |(_, library)| library);
    Ok(library.split_whitespace().nth(1).unwrap_or("unknown").to_owned())
}

/// A folder that `openssl version` names: `-d` the configuration's, `-m` the modules'.
///
/// # Errors
/// No such program, or it does not say.
pub fn named_folder(option: &str) -> Result<PathBuf> {
    let folder = tempfile::tempdir()?;
    let said = openssl(None, folder.path(), &format!("version {option}"))?;
    let text = String::from_utf8_lossy(&said.out).into_owned();
    let path =
        text.split('"').nth(1).with_context(|| format!("`openssl version {option}` names no folder"))?;
    Ok(PathBuf::from(path))
}

/// What a provider that is loaded says of itself.
#[derive(Debug, Default)]
pub struct Loaded {
    pub version: String,
    pub build: String,
}

/// Whether programs under this configuration have our provider.
///
/// # Errors
/// The configuration cannot be tried at all.
pub fn loaded(configuration: &Path) -> Result<Option<Loaded>> {
    let folder = tempfile::tempdir()?;
    let said = openssl(Some(configuration), folder.path(), "list -providers -verbose")?;
    Ok(of_list(&String::from_utf8_lossy(&said.out)))
}

fn of_list(text: &str) -> Option<Loaded> {
    let ours = text.lines().skip_while(|line| *line != "  wattlock").skip(1);
    let ours: Vec<&str> = ours.take_while(|line| line.starts_with("    ")).collect();
    let field = |name: &str| {
        ours.iter().find_map(|line| line.trim().strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    field("status:").filter(|status| status == "active")?;
    Some(Loaded { version: field("version:")?, build: field("build info:").unwrap_or_default() })
}

/// Why a module does not load with these settings; `None` if it does. Nothing else is configured meanwhile.
///
/// # Errors
/// It cannot be tried at all.
pub fn refusal(module: &str, settings: &[(String, String)]) -> Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("alone.cnf");
    let mut text = "openssl_conf = i\n[i]\nproviders = p\n[p]\nwattlock = w\n[w]\n".to_owned();
    text += &format!("module = {}\n", super::conf::written(module)?);
    for (key, value) in settings {
        text += &format!("{key} = {}\n", super::conf::written(value)?);
    }
    std::fs::write(&file, text)?;
    let said = openssl(Some(&file), folder.path(), "list -providers -provider wattlock")?;
    Ok((!said.good).then(|| why(&said.err)))
}

/// Takes a configuration, a folder and a message.
type Part = fn(&Path, &Path, &[u8]) -> Result<()>;

/// Does under this configuration what programs do, and has OpenSSL alone check it, and the other way round: a message
/// under AES-256-GCM, an RSA signature, a key agreement with X25519. What the former configuration does not give either is
/// left out; returned are the names of that.
///
/// # Errors
/// What did not work, or that nothing works even with the former configuration.
pub fn rehearse(configuration: &Path, former: &Path) -> Result<Vec<&'static str>> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let message: Vec<u8> = (0..40_000_u32).map(|n| ((n * n) >> 7) as u8).collect();
    std::fs::write(at.join("message"), &message)?;
    let parts: [(&'static str, Part); 3] =
        [("AES-256-GCM", messages), ("RSA", signatures), ("X25519", agreement)];
    let (mut left_out, mut why_not) = (Vec::new(), None);
    for (name, part) in parts {
        let Err(error) = part(configuration, at, &message) else { continue };
        match part(former, at, &message) {
            Ok(()) => return Err(error),
            Err(before) => {
                left_out.push(name);
                why_not = why_not.or(Some(before));
            }
        }
    }
    if let Some(why) = why_not {
        let others = parts.iter().filter(|(name, _)| !left_out.contains(name));
        if !others.into_iter().any(|(_, part)| part(former, at, &message).is_ok()) {
            bail!("no provider of the file works even without Wattlock: {why}");
        }
    }
    Ok(left_out)
}

fn messages(configuration: &Path, at: &Path, message: &[u8]) -> Result<()> {
    let with = |arguments: &str| step(Some(configuration), at, arguments);
    let alone = |arguments: &str| step(None, at, arguments);
    // The key guards nothing: the message is the one above.
    let key = "-secretkey 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f -secretkeyid 01";
    let seal = format!("cms -encrypt -binary -aes-256-gcm {key} -in message -outform DER -out sealed");
    let open = format!("cms -decrypt -binary -inform DER -in sealed {key}");
    with(&seal)?;
    same("AES-256-GCM", &alone(&open)?, message)?;
    alone(&seal)?;
    same("AES-256-GCM", &with(&open)?, message)
}

fn signatures(configuration: &Path, at: &Path, _: &[u8]) -> Result<()> {
    let with = |arguments: &str| step(Some(configuration), at, arguments);
    let alone = |arguments: &str| step(None, at, arguments);
    with("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa")?;
    alone("pkey -in rsa -pubout -out rsa.pub")?;
    let verify = "dgst -sha256 -verify rsa.pub -signature signature message";
    with("dgst -sha256 -sign rsa -out signature message")?;
    alone(verify)?;
    with(verify).map(|_| ())
}

fn agreement(configuration: &Path, at: &Path, _: &[u8]) -> Result<()> {
    let with = |arguments: &str| step(Some(configuration), at, arguments);
    let alone = |arguments: &str| step(None, at, arguments);
    for name in ["a", "b"] {
        with(&format!("genpkey -algorithm X25519 -out {name}"))?;
        alone(&format!("pkey -in {name} -pubout -out {name}.pub"))?;
    }
    let shared = with("pkeyutl -derive -inkey a -peerkey b.pub")?;
    same("X25519", &alone("pkeyutl -derive -inkey b -peerkey a.pub")?, &shared)
}

fn step(configuration: Option<&Path>, folder: &Path, arguments: &str) -> Result<Vec<u8>> {
    let said = openssl(configuration, folder, arguments)?;
    if !said.good {
        let name = arguments.split(' ').next().unwrap_or_default();
        let whose = match configuration {
            Some(_) => "with this file",
            None => "alone, on what this file's providers made",
        };
        bail!("openssl {name} {whose}: {}", why(&said.err));
    }
    Ok(said.out)
}

fn same(what: &str, one: &[u8], other: &[u8]) -> Result<()> {
    if one.is_empty() || one != other {
        bail!("{what}: with this file and without it the results differ");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_found_in_the_list_only_if_active() {
        let text = "Providers:\n  default\n    name: x\n    status: active\n  wattlock\n    name: Wattlock\n    version: 1.2\n    status: active\n    build info: b\n  other\n    build info: c\n";
        let found = of_list(text).unwrap();
        assert_eq!((found.version.as_str(), found.build.as_str()), ("1.2", "b"));
        assert!(of_list(&text.replace("  wattlock", "  wattle")).is_none());
        assert!(of_list(&text.replace("1.2\n    status: active", "1.2\n    status: inactive")).is_none());
    }

    #[test]
    fn the_reason_is_what_the_provider_said() {
        assert_eq!(
            why(
                "list: unable\nHint: x\n40A7:error:1C800068:Provider routines::failed:f:242:wattlock: policy = nope: one of a\n"
            ),
            "policy = nope: one of a"
        );
        assert_eq!(
            why("list: unable\n40:error:1:DSO:f:dlfcn.c:115:filename(/n.so): /n.so: cannot open\n"),
            "/n.so: cannot open"
        );
        assert_eq!(why("40:error:0308010C:envelope:fetch:unsupported:f.c:386:x\n"), "unsupported");
        assert_eq!(why("Error reading keys\n"), "Error reading keys");
        assert_eq!(why(""), "it gave no reason");
    }
}
