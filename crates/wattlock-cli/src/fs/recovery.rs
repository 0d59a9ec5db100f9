//! One more key of a new volume, to be kept on paper.
//!
//! It goes to standard output, so that it need never lie on a disk (`| lpr`, or copied by hand from the terminal), or to a
//! new file that no other user reads. It is never kept in the volume's folder: whoever has that would have the key.

use std::path::Path;

use age::secrecy::ExposeSecret;
use anyhow::Result;
use wattlock_door::one_line;
use wattlock_fs::Error;
use wattlock_fs::volume::Volume;
use zeroize::Zeroizing;

use crate::keygen;

/// What the key is called.
const NAME: &str = "recovery";

/// A fresh identity that opens the volume.
pub struct Recovery {
    identity: age::x25519::Identity,
}

impl Recovery {
    /// Makes one and adds it to the volume.
    pub fn add(volume: &mut Volume) -> Result<Recovery, Error> {
        let identity = age::x25519::Identity::generate();
        volume.add_recipient(NAME, &identity.to_public().to_string())?;
        Ok(Recovery { identity })
    }

    /// Prints it. What is printed is an identity file as age reads it.
    pub fn print(&self, file: Option<&Path>, volume: &Path, fingerprint: &str) -> Result<()> {
        let volume = std::path::absolute(volume).unwrap_or_else(|_| volume.to_owned());
        let text = Zeroizing::new(format!(
            "# Recovery key of the encrypted volume {}\n# fingerprint: {fingerprint}\n# public key: {}\n{}\n\
             # It opens the volume alone. Keep it on paper, away from the machine. To use it, type the line that\n\
             # begins with AGE-SECRET-KEY-1 into a file: wattlock fs ls -i FILE VOLUME, or recover.py.\n",
            one_line(&volume),
            self.identity.to_public(),
            self.identity.to_string().expose_secret()
        ));
        match file {
            Some(file) => keygen::write(file, text.as_bytes(), false),
            None => Ok(wattlock_shell::text::write(format_args!("{}", *text))?),
        }
    }
}

/// Refuses a file in the volume's own folder.
pub fn refuse_inside(file: &Path, volume: &Path) -> Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let inside = parent.canonicalize().ok().zip(volume.canonicalize().ok());
    if inside.is_some_and(|(parent, volume)| parent.starts_with(volume)) {
        let what = "the recovery key would be in the volume's own folder, with what it opens";
        return Err(Error::Usage(format!("{}: {what}", one_line(file))).into());
    }
    Ok(())
}
