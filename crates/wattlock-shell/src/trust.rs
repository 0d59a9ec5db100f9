//! Who but root may change a file or a folder: what root runs, or is to find at every start, nobody else may.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Everybody may write in such a folder, and change only what is their own.
const STICKY: u32 = 0o1000;

/// Who but root may change what this is of, in words: its owner, its group, or everybody. None if root alone may.
/// Folders above it are not looked at.
pub fn changed_by(about: &Metadata) -> Option<String> {
    by(about.uid(), about.gid(), about.mode(), about.is_dir())
}

fn by(owner: u32, group: u32, mode: u32, is_folder: bool) -> Option<String> {
    if owner != 0 {
        return Some(format!("it belongs to user {owner}"));
    }
    let others = mode & 0o002 != 0;
    let of_group = mode & 0o020 != 0 && group != 0;
    let is_sticky = is_folder && mode & STICKY != 0;
    ((others || of_group) && !is_sticky).then(|| match others {
        true => "every user may write it".to_owned(),
        false => format!("group {group} may write it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_root_alone_can_change_is_trusted() {
        for (owner, group, mode, is_folder, is_refused) in [
            (0, 0, 0o644, false, false),
            (0, 0, 0o664, false, false),
            (0, 33, 0o640, false, false),
            (0, 33, 0o664, false, true),
            (0, 0, 0o666, false, true),
            (0, 0, 0o646, false, true),
            (0, 0, 0o1666, false, true),
            (1000, 0, 0o600, false, true),
            (0, 0, 0o775, true, false),
            (0, 33, 0o750, true, false),
            (0, 33, 0o775, true, true),
            (0, 0, 0o1777, true, false),
            (1000, 0, 0o700, true, true),
            (1000, 0, 0o1777, true, true),
        ] {
            assert_eq!(
                by(owner, group, mode, is_folder).is_some(),
                is_refused,
                "{owner} {group} {mode:o} {is_folder}"
            );
        }
    }
}
