//! FUSE's requests.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno as Refusal, FileAttr, FileHandle as Fh, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags};
use rustix::io::Errno;
use wattlock_fs::Error;
use wattlock_fs::tree::{Entry, Listed};

use crate::attr::{device_from_fuse, kind, to_set};
use crate::attributes;
use crate::backing::{Backing, Result};
use crate::caller::{Caller, Groups};
use crate::counters::Op;
use crate::door::{
    Door, FileHandle, FolderHandle, Inner, Opened, Spot, entry, errno, groups_for, inode, type_of,
};
use crate::folders::Dir;
use crate::table::ROOT;
use wattlock_core::sync::lock;

/// Largest request.
pub(crate) const LARGEST: u32 = 1 << 20;

/// Bytes that one copying request moves at most; the kernel asks again for the rest.
const COPY_AT_ONCE: u64 = 16 << 20;

const PUNCH_HOLE: i32 = 2;
const KEEP_SIZE: i32 = 1;
const ZERO_RANGE: i32 = 16;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
const EXECUTES: u32 = 0o111;
const CAPABILITY: &str = "security.capability";
const ACL: &[u8] = b"system.posix_acl_";

impl<B: Backing> Inner<B> {
    fn caller(request: &Request) -> Caller {
        Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }

    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> Result<Option<(FileAttr, Generation)>> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            match self.stat_in(&dir, &entry.stored) {
                Ok(stat) => self.found(parent, &dir, &entry, &stat, thread).map(Some),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(errno(error)),
            }
        })
    }

    /// Makes something in a folder and tells the kernel of it.
    fn make(
        &self,
        parent: u64,
        name: &OsStr,
        make: impl FnOnce(&Dir<B::Folder>, &Entry, &mut B::Thread) -> Result<()>,
    ) -> Result<(FileAttr, Generation)> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            make(&dir, &entry, thread)?;
            let stat = self.stat_in(&dir, &entry.stored).map_err(errno)?;
            self.found(parent, &dir, &entry, &stat, thread)
        })
    }

    fn remove(&self, parent: u64, name: &OsStr, folder: bool) -> Result<()> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            let _moving = self.moving();
            let stat = self.stat_in(&dir, &entry.stored).map_err(errno)?;
            let number = self.table.number(inode(&stat));
            let links = stat.st_nlink;
            // A removed folder may still be a program's working folder.
            let held = match folder || self.table.needs_holding(number, links) {
                true => Some(Arc::new(self.name_only(&dir, &entry.stored)?)),
                false => None,
            };
            self.backing.remove(&dir.folder, &entry, folder)?;
            if folder {
                self.folders.forget(number);
            }
            self.table.name_removed(number, parent, &entry.stored, folder || links <= 1, held);
            Ok(())
        })
    }

    fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags) -> Result<()> {
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return Err(errno(Errno::INVAL));
        }
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let flags = rustix::fs::RenameFlags::from_bits_truncate(flags.bits());
        self.on_thread(|thread, _| {
            let (old, new) = (self.dir(from.0, thread)?, self.dir(to.0, thread)?);
            let old_entry = self.backing.entry(&old.folder, from.1, thread)?;
            let new_entry = self.backing.entry(&new.folder, to.1, thread)?;
            let _moving = self.moving();
            let moved = self.stat_in(&old, &old_entry.stored).map_err(errno)?;
            let moved = self.table.number(inode(&moved));
            let victim = match self.stat_in(&new, &new_entry.stored) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(error) => return Err(errno(error)),
            };
            let mut gone = None;
            if let (Some(stat), false) = (&victim, exchange) {
                let number = self.table.number(inode(stat));
                let folder = type_of(stat) == FileType::Directory;
                let links = stat.st_nlink;
                let held = match folder || self.table.needs_holding(number, links) {
                    true => Some(Arc::new(self.name_only(&new, &new_entry.stored)?)),
                    false => None,
                };
                gone = Some((number, folder, folder || links <= 1, held));
            }
            self.backing.rename((&old.folder, &old_entry), (&new.folder, &new_entry), flags)?;
            if let Some((number, folder, last, held)) = gone {
                if number == moved {
                    // Two names of one file: nothing happened.
                    return Ok(());
                }
                if folder {
                    self.folders.forget(number);
                }
                self.table.name_removed(number, to.0, &new_entry.stored, last, held);
            }
            self.table.name_added(moved, to.0, &new_entry.stored);
            self.table.name_removed(moved, from.0, &old_entry.stored, false, None);
            if let (Some(stat), true) = (&victim, exchange) {
                let other = self.table.number(inode(stat));
                self.table.name_added(other, from.0, &old_entry.stored);
                self.table.name_removed(other, to.0, &new_entry.stored, false, None);
            }
            Ok(())
        })
    }

    fn link(&self, number: u64, parent: u64, name: &OsStr) -> Result<(FileAttr, Generation)> {
        self.make(parent, name, |dir, entry, thread| {
            let (spot, _) = self.spot(number, thread)?;
            match spot.named() {
                Some((from, old)) => self.backing.hard_link((&from.folder, old), (&dir.folder, entry)),
                None => Err(errno(Errno::NOENT)),
            }
        })
    }

    /// What the kernel wants to set, in the order in which a failure leaves least behind.
    fn set(&self, number: u64, request: &Request, wanted: &Wanted) -> Result<FileAttr> {
        self.on_thread(|thread, _| {
            if let Some(size) = wanted.size {
                self.truncate(number, size, request, wanted.handle, thread)?;
            }
            let (spot, stat) = self.spot(number, thread)?;
            if wanted.uid.is_some() || wanted.gid.is_some() {
                self.chown(&spot, wanted.uid, wanted.gid)?;
                self.table.not_plain(number);
            }
            if let Some(mode) = wanted.mode {
                self.chmod(number, &spot, mode)?;
            }
            let mut times = wanted.times.clone();
            if wanted.size.is_some() && times.last_modification.tv_nsec == UTIME_OMIT {
                times.last_modification.tv_nsec = UTIME_NOW;
            }
            if times.last_access.tv_nsec != UTIME_OMIT || times.last_modification.tv_nsec != UTIME_OMIT {
                self.set_times(&spot, &stat, &times)?;
            }
            self.attr_of(number, thread)
        })
    }

    fn truncate(
        &self,
        number: u64,
        size: u64,
        request: &Request,
        handle: Option<u64>,
        thread: &mut B::Thread,
    ) -> Result<()> {
        let open = handle.and_then(|handle| self.files.get(handle)).filter(|file| file.opened.writable);
        match open {
            Some(file) => self.backing.set_len(&file.opened.content, size, thread)?,
            None => {
                let opened = self.open(number, true, thread)?;
                let done = self.backing.set_len(&opened.content, size, thread);
                self.table.closed(number);
                done?;
            }
        }
        if request.uid() != 0 {
            self.drop_privileges(number, None, thread)?;
        }
        Ok(())
    }

    /// Takes the set-user and set-group bits from a file whose content changed, and its capabilities. The set-group bit
    /// of a file that its group may not execute goes only if the caller's `group`, where it counts, is another one.
    fn drop_privileges(&self, number: u64, group: Option<u32>, thread: &mut B::Thread) -> Result<()> {
        let (spot, stat) = self.spot(number, thread)?;
        let mode = stat.st_mode & 0o7777;
        let stays = mode & GROUP_EXECUTES == 0 && group.is_none_or(|group| group == stat.st_gid);
        let left = mode & !(SUID | if stays { 0 } else { SGID });
        if left != mode {
            self.chmod(number, &spot, left)?;
            // The kernel leaves the bits to this process and goes on showing those that it knows.
            if let Some(notifier) = self.notifier.get() {
                let _ = notifier.inval_inode(INodeNo(number), -1, 0);
            }
        }
        self.drop_capability(number, thread);
        Ok(())
    }

    fn drop_capability(&self, number: u64, thread: &mut B::Thread) {
        if self.table.is_plain(number) {
            return;
        }
        let dropped = self.spot(number, thread).and_then(|(spot, _)| {
            self.with_path(&spot, |path| self.backing.remove_attribute(path, CAPABILITY.as_ref(), thread))
        });
        // Most files have none, and some file systems have none of these attributes.
        drop(dropped);
    }

    fn write(&self, number: u64, handle: u64, at: u64, data: &[u8], how: (WriteFlags, i32)) -> Result<()> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        self.on_thread(|thread, _| {
            if how.0.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_privileges(number, None, thread)?;
            } else {
                self.drop_capability(number, thread);
            }
            let append = self.behaviour.shared && how.1 as u32 & OFlags::APPEND.bits() != 0;
            match append {
                true => self.backing.append(&file.opened.content, data, thread).map(|_| ())?,
                false => self.backing.write(&file.opened.content, data, at, thread)?,
            }
            if self.behaviour.shared {
                self.touch(number, thread)?;
            }
            Ok(())
        })
    }

    /// The modification time is now. With a writeback cache the kernel keeps it.
    fn touch(&self, number: u64, thread: &mut B::Thread) -> Result<()> {
        let (spot, stat) = self.spot(number, thread)?;
        let mut times = unchanged();
        times.last_modification.tv_nsec = UTIME_NOW;
        self.set_times(&spot, &stat, &times)
    }

    fn allocate(
        &self,
        number: u64,
        handle: u64,
        (at, len): (u64, u64),
        mode: i32,
        request: &Request,
    ) -> Result<()> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        let content = &file.opened.content;
        let end =
            at.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or_else(|| errno(Errno::FBIG))?;
        self.on_thread(|thread, _| {
            match request.uid() {
                0 => self.drop_capability(number, thread),
                _ => self.drop_privileges(number, Some(request.gid()), thread)?,
            }
            // Asked and done in one: the kernel may write behind the end at this moment.
            let grow = |thread: &mut B::Thread| self.backing.grow(content, end, thread);
            let clear = |thread: &mut B::Thread| {
                let len = self.backing.len(content).min(end).saturating_sub(at);
                if len == 0 { Ok(()) } else { self.backing.zero(content, at, len, thread) }
            };
            match mode {
                0 => grow(thread),
                KEEP_SIZE => Ok(()),
                _ if mode == PUNCH_HOLE | KEEP_SIZE || mode == ZERO_RANGE | KEEP_SIZE => clear(thread),
                ZERO_RANGE => {
                    clear(thread)?;
                    grow(thread)
                }
                _ => Err(errno(Errno::OPNOTSUPP)),
            }?;
            if self.behaviour.shared { self.touch(number, thread) } else { Ok(()) }
        })
    }

    fn seek(&self, handle: u64, at: i64, whence: i32) -> Result<i64> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        let at = u64::try_from(at).map_err(|_| errno(Errno::NXIO))?;
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(errno(Errno::INVAL)),
        };
        let content = &file.opened.content;
        if at >= self.backing.len(content) {
            return Err(errno(Errno::NXIO));
        }
        let found = self.on_thread(|thread, _| self.backing.seek(content, at, hole, thread))?;
        found.map(|found| found as i64).ok_or_else(|| errno(Errno::NXIO))
    }

    /// Copies inside the process. What is a hole in the source becomes zeros in the target.
    fn copy(&self, from: (u64, u64), to: (u64, u64), len: u64, request: &Request) -> Result<u32> {
        let source = self.files.get(from.0).ok_or_else(|| errno(Errno::BADF))?;
        let target = self.files.get(to.0).ok_or_else(|| errno(Errno::BADF))?;
        let (reads, writes) = (&source.opened.content, &target.opened.content);
        let len = len.min(COPY_AT_ONCE);
        let mut done = 0;
        self.on_thread(|thread, buffer| {
            match request.uid() {
                0 => self.drop_capability(target.number, thread),
                _ => self.drop_privileges(target.number, Some(request.gid()), thread)?,
            }
            let result = loop {
                let step = (len - done).min(LARGEST.into()) as usize;
                let buffer = filled(buffer, step);
                if step == 0 {
                    break Ok(());
                }
                let got = match self.backing.read(reads, buffer, from.1 + done, thread) {
                    Ok(0) => break Ok(()),
                    Ok(got) => got,
                    Err(error) => break Err(error),
                };
                if let Err(error) = self.backing.write(writes, &buffer[..got], to.1 + done, thread) {
                    break Err(error);
                }
                done += got as u64;
            };
            // What is copied is copied; an error that stays comes back with the next request.
            if done > 0 { Ok(()) } else { result }
        })?;
        if self.behaviour.shared {
            self.on_thread(|thread, _| self.touch(target.number, thread))?;
        }
        Ok(done as u32)
    }

    /// A folder's entries, made anew from the start.
    fn listing(&self, number: u64, handle: u64, from: u64) -> Result<Arc<Vec<Listed>>> {
        let open = self.dirs.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        let mut listing = lock(&open.listing);
        if let (Some(listed), true) = (&*listing, from > 0) {
            return Ok(listed.clone());
        }
        let (listed, foreign) = self.on_thread(|thread, _| {
            let dir = self.dir(number, thread)?;
            self.backing.list(&dir.folder, thread)
        })?;
        for stored in foreign {
            let path = self.table.path(number, &stored);
            let path = wattlock_door::one_line(path.as_ref());
            self.refuse(&Error::Damaged("a name that does not open".to_owned()), || path.to_string());
        }
        let listed = Arc::new(listed);
        *listing = Some(listed.clone());
        Ok(listed)
    }

    fn get_attribute(&self, number: u64, name: &OsStr) -> Result<Vec<u8>> {
        // The kernel asks for this one at the first write and at each change of owner.
        if name == CAPABILITY && !self.behaviour.shared && self.table.is_known_plain(number) {
            return Err(errno(Errno::NODATA));
        }
        self.on_thread(|thread, _| {
            let (spot, _) = self.spot(number, thread)?;
            self.with_path(&spot, |path| match is_acl(name) {
                true => attributes::get(path, name).map_err(errno),
                false => self.backing.attribute(path, name, thread),
            })
        })
    }

    /// Whether root may use an inode: all but execute what no user may.
    fn access(&self, number: u64, execute: bool) -> Result<()> {
        let (_, stat) = self.on_thread(|thread, _| self.spot(number, thread))?;
        match execute && type_of(&stat) != FileType::Directory && stat.st_mode & EXECUTES == 0 {
            true => Err(errno(Errno::ACCESS)),
            false => Ok(()),
        }
    }

    fn list_attributes(&self, number: u64) -> Result<Vec<u8>> {
        self.on_thread(|thread, _| {
            let (spot, _) = self.spot(number, thread)?;
            self.with_path(&spot, |path| {
                let mut list = Vec::new();
                for name in self.backing.attributes(path, thread)? {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                Ok(list)
            })
        })
    }

    fn set_attribute(
        &self,
        request: &Request,
        number: u64,
        name: &OsStr,
        value: Option<(&[u8], XattrFlags)>,
    ) -> Result<()> {
        self.on_thread(|thread, _| {
            let (spot, _) = self.spot(number, thread)?;
            self.table.not_plain(number);
            self.with_path(&spot, |path| {
                if !is_acl(name) {
                    return match value {
                        Some((value, flags)) => self.backing.set_attribute(path, name, value, flags, thread),
                        None => self.backing.remove_attribute(path, name, thread),
                    };
                }
                // The backing file system takes the set-group bit from a file whose group the caller is not in.
                self.as_caller(Inner::<B>::caller(request), Groups::Needed, || {
                    match value {
                        Some((value, flags)) => attributes::set(path, name, value, flags),
                        None => attributes::remove(path, name),
                    }
                    .map_err(errno)
                })
            })?;
            // A write in between may have believed that there was none.
            self.table.not_plain(number);
            if is_acl(name) {
                if let (true, Some(notifier)) = (self.behaviour.unbound, self.notifier.get()) {
                    // An ACL changes the mode, which the kernel expects only of file systems whose ACLs it checks.
                    let _ = notifier.inval_inode(INodeNo(number), -1, 0);
                }
                match self.folders.get(number) {
                    Some(dir) => dir.acl_changed(),
                    None if number == ROOT => self.root.acl_changed(),
                    None => {}
                }
            }
            Ok(())
        })
    }

    fn sync(&self, handle: u64) -> Result<()> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        self.backing.sync_records()?;
        self.on_thread(|thread, _| self.backing.sync(&file.opened.content, thread))
    }

    fn sync_folder(&self, number: u64) -> Result<()> {
        self.backing.sync_records()?;
        self.on_thread(|thread, _| {
            let dir = self.dir(number, thread)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder =
                rustix::fs::openat(self.backing.fd(&dir.folder), ".", flags, Mode::empty()).map_err(errno)?;
            rustix::fs::fsync(folder.as_fd()).map_err(errno)
        })
    }

    fn read_link(&self, number: u64) -> Result<Vec<u8>> {
        self.on_thread(|thread, _| {
            let (spot, _) = self.spot(number, thread)?;
            match spot {
                Spot::Named(dir, entry) => self.backing.read_link(&dir.folder, &entry, thread),
                _ => Err(errno(Errno::INVAL)),
            }
        })
    }

    fn create_and_open(
        &self,
        request: &Request,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        exclusive: bool,
    ) -> Result<(FileAttr, Generation, u64)> {
        self.on_thread(|thread, _| {
            let dir = self.dir(parent, thread)?;
            let entry = self.backing.entry(&dir.folder, name, thread)?;
            let mode = self.masked(&dir, mode, umask);
            let made = self.create(parent, &dir, &entry, (mode, Inner::<B>::caller(request)), thread);
            let (opened, attr, generation) = match made {
                // Another mount or process made it meanwhile. The kernel looks it up anew, and asks whether the caller
                // may open it, which it does not for a file that it believes to be made by this call.
                Err(error) if error.errno() == Errno::EXIST.raw_os_error() && !exclusive => {
                    return Err(errno(Errno::STALE));
                }
                made => made?,
            };
            let handle = self.add_file(attr.ino.0, opened, true);
            Ok((attr, generation, handle))
        })
    }

    fn add_file(&self, number: u64, opened: Arc<Opened<B::Content>>, writes: bool) -> u64 {
        if writes {
            self.table.writer_came(number);
        }
        self.files.add(FileHandle { number, opened, writes })
    }

    fn release(&self, handle: u64) {
        let Some(file) = self.files.remove(handle) else { return };
        let (number, writes) = (file.number, file.writes);
        drop(file);
        if writes {
            self.table.writer_gone(number);
        }
        self.table.closed(number);
    }

    fn flags_of_open(&self) -> FopenFlags {
        match self.behaviour.shared {
            true => FopenFlags::FOPEN_NOFLUSH,
            false => FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_KEEP_CACHE,
        }
    }
}

/// What `setattr` was asked for.
struct Wanted {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    times: Timestamps,
    handle: Option<u64>,
}

fn unchanged() -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Timestamps { last_access: omit, last_modification: omit }
}

fn is_acl(name: &OsStr) -> bool {
    name.as_bytes().starts_with(ACL)
}

/// The first `len` bytes of a buffer that grows once.
fn filled(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

fn answer_attribute(reply: ReplyXattr, value: &[u8], room: u32) {
    match room {
        0 => reply.size(value.len() as u32),
        _ if value.len() > room as usize => reply.error(Refusal::ERANGE),
        _ => reply.data(value),
    }
}

impl<B: Backing> Door<B> {
    fn entered(&self, what: (u64, &OsStr), result: Result<(FileAttr, Generation)>, reply: ReplyEntry) {
        match result {
            Ok((attr, generation)) => reply.entry(&self.inner.lifetime(), &attr, generation),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(what.0))),
        }
    }

    fn done(&self, number: u64, result: Result<()>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number))),
        }
    }

    fn count(&self, op: Op) {
        self.inner.counters.op(op);
    }
}

impl<B: Backing> Filesystem for Door<B> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let shared = self.inner.behaviour.shared;
        // Not FUSE_ASYNC_DIO: after an asynchronous direct write the kernel leaves pages as they are that a buffered read
        // took in while it was going on, for as long as it keeps them.
        let mut wanted = vec![
            InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        if !self.inner.behaviour.unbound {
            // With this the kernel checks permissions, by ACLs too, whatever the mount's options say.
            wanted.push(InitFlags::FUSE_POSIX_ACL);
        }
        match shared {
            true => wanted.push(InitFlags::FUSE_AUTO_INVAL_DATA),
            false => wanted.extend([
                InitFlags::FUSE_WRITEBACK_CACHE,
                InitFlags::FUSE_CACHE_SYMLINKS,
                InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            ]),
        }
        for flags in wanted {
            // What this kernel does not have goes without.
            let _ = config.add_capabilities(flags);
        }
        let _ = config.set_max_write(LARGEST);
        if let Err(most) = config.set_max_readahead(LARGEST) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.count(Op::Lookup);
        match self.inner.lookup(parent.0, name) {
            Ok(None) if self.inner.behaviour.shared => reply.error(Refusal::ENOENT),
            Ok(None) => reply.entry(&self.inner.lifetime(), &absent(), Generation(0)),
            Ok(Some(found)) => self.entered((parent.0, name), Ok(found), reply),
            Err(error) => self.entered((parent.0, name), Err(error), reply),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        self.inner.table.forget(number.0, count);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<Fh>, reply: ReplyAttr) {
        self.count(Op::Attributes);
        match self.inner.on_thread(|thread, _| self.inner.attr_of(number.0, thread)) {
            Ok(attr) => reply.attr(&self.inner.lifetime(), &attr),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<Fh>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.count(Op::Attributes);
        let times = Timestamps { last_access: to_set(atime), last_modification: to_set(mtime) };
        let wanted = Wanted { mode, uid, gid, size, times, handle: handle.map(|handle| handle.0) };
        match self.inner.set(number.0, request, &wanted) {
            Ok(attr) => reply.attr(&self.inner.lifetime(), &attr),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn access(&self, _request: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if !self.inner.behaviour.unbound {
            // The kernel checks, and never asks.
            return reply.error(Refusal::ENOSYS);
        }
        self.count(Op::Attributes);
        self.done(number.0, self.inner.access(number.0, mask.contains(AccessFlags::X_OK)), reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        self.count(Op::Attributes);
        match self.inner.read_link(number.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.count(Op::Make);
        let (inner, caller) = (&self.inner, Inner::<B>::caller(request));
        let kind = FileType::from_raw_mode(mode);
        let result = match kind {
            FileType::RegularFile => {
                let made = inner.create_and_open(request, (parent.0, name), (mode, umask), true);
                made.map(|(attr, generation, handle)| {
                    inner.release(handle);
                    (attr, generation)
                })
            }
            _ => inner.make(parent.0, name, |dir, entry, _| {
                let mode = inner.masked(dir, mode, umask);
                inner.as_caller(caller, groups_for(mode), || {
                    inner.backing.make_node(&dir.folder, entry, kind, mode, device_from_fuse(rdev))
                })
            }),
        };
        self.entered((parent.0, name), result, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.count(Op::Make);
        let (inner, caller) = (&self.inner, Inner::<B>::caller(request));
        let result = inner.make(parent.0, name, |dir, entry, thread| {
            let mode = inner.masked(dir, mode, umask);
            inner.as_caller(caller, Groups::Perhaps, || {
                inner.backing.make_folder(&dir.folder, entry, mode, thread)
            })
        });
        self.entered((parent.0, name), result, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.count(Op::Remove);
        self.done(parent.0, self.inner.remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.count(Op::Remove);
        self.done(parent.0, self.inner.remove(parent.0, name, true), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.count(Op::Make);
        let (inner, caller) = (&self.inner, Inner::<B>::caller(request));
        let result = inner.make(parent.0, name, |dir, entry, thread| {
            inner.as_caller(caller, Groups::Perhaps, || {
                inner.backing.make_link(&dir.folder, entry, target.as_os_str(), thread)
            })
        });
        self.entered((parent.0, name), result, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.count(Op::Remove);
        self.done(parent.0, self.inner.rename((parent.0, name), (new_parent.0, new_name), flags), reply);
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.count(Op::Make);
        self.entered((new_parent.0, new_name), self.inner.link(number.0, new_parent.0, new_name), reply);
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.count(Op::Open);
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        match self.inner.on_thread(|thread, _| self.inner.open(number.0, write, thread)) {
            Ok(opened) => {
                let handle = self.inner.add_file(number.0, opened, write);
                reply.opened(Fh(handle), self.inner.flags_of_open());
            }
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Fh,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.count(Op::Read);
        let inner = &self.inner;
        let Some(file) = inner.files.get(handle.0) else { return reply.error(Refusal::EBADF) };
        inner.on_thread(|thread, buffer| {
            let buffer = filled(buffer, size as usize);
            match inner.backing.read(&file.opened.content, buffer, offset, thread) {
                Ok(len) => {
                    inner.counters.bytes(false, len);
                    reply.data(&buffer[..len]);
                }
                Err(error) => reply.error(inner.refuse(&error, || inner.described(number.0))),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Fh,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.count(Op::Write);
        match self.inner.write(number.0, handle.0, offset, data, (write_flags, flags.0)) {
            Ok(()) => {
                self.inner.counters.bytes(true, data.len());
                reply.written(data.len() as u32);
            }
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: Fh,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // The kernel stops asking: closing acknowledges nothing.
        reply.error(Refusal::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: Fh,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        self.inner.release(handle.0);
    }

    fn fsync(&self, _request: &Request, number: INodeNo, handle: Fh, _datasync: bool, reply: ReplyEmpty) {
        self.count(Op::Sync);
        self.done(number.0, self.inner.sync(handle.0), reply);
    }

    fn opendir(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = match self.inner.behaviour.shared {
            true => FopenFlags::empty(),
            false => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
        };
        reply.opened(Fh(self.inner.dirs.add(FolderHandle::default())), flags);
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Fh,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.count(Op::List);
        let listed = match self.inner.listing(number.0, handle.0, offset) {
            Ok(listed) => listed,
            Err(error) => return reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        };
        let device = self.inner.device(number.0);
        for (at, dot) in [".", ".."].into_iter().enumerate().skip(offset as usize) {
            let inode = self.inner.dot(number.0, at == 1);
            if reply.add(INodeNo(inode), at as u64 + 1, fuser::FileType::Directory, dot) {
                return reply.ok();
            }
        }
        let from = (offset as usize).saturating_sub(2);
        for (at, one) in listed.iter().enumerate().skip(from) {
            let inode = self.inner.table.number((device, one.inode));
            if reply.add(INodeNo(inode), at as u64 + 3, kind(one.kind), OsStr::from_bytes(&one.name)) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Fh,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.count(Op::List);
        let inner = &self.inner;
        let listed = match inner.listing(number.0, handle.0, offset) {
            Ok(listed) => listed,
            Err(error) => return reply.error(inner.refuse(&error, || inner.described(number.0))),
        };
        let lifetime = inner.lifetime();
        inner.on_thread(|thread, _| {
            let dir = match inner.dir(number.0, thread) {
                Ok(dir) => dir,
                Err(error) => return reply.error(inner.refuse(&error, || inner.described(number.0))),
            };
            for (at, dot) in [".", ".."].into_iter().enumerate().skip(offset as usize) {
                let mut attr = absent();
                attr.ino = INodeNo(inner.dot(number.0, at == 1));
                if reply.add(attr.ino, at as u64 + 1, dot, &lifetime, &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            let from = (offset as usize).saturating_sub(2);
            for (at, one) in listed.iter().enumerate().skip(from) {
                // What was removed since is left out, and so is what cannot be shown.
                let Ok(stat) = inner.stat_in(&dir, &one.stored) else { continue };
                let entry = entry(one.stored.clone());
                let (attr, generation) = match inner.found(number.0, &dir, &entry, &stat, thread) {
                    Ok(found) => found,
                    Err(error) => {
                        let path = || inner.table.path(number.0, &one.stored).to_string_lossy().into_owned();
                        inner.refuse(&error, path);
                        continue;
                    }
                };
                let name = OsStr::from_bytes(&one.name);
                if reply.add(attr.ino, at as u64 + 3, name, &lifetime, &attr, generation) {
                    inner.table.forget(attr.ino.0, 1);
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: Fh,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.inner.dirs.remove(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, number: INodeNo, _handle: Fh, _datasync: bool, reply: ReplyEmpty) {
        self.count(Op::Sync);
        self.done(number.0, self.inner.sync_folder(number.0), reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        self.count(Op::Other);
        match rustix::fs::fstatvfs(self.inner.backing.fd(&self.inner.root.folder)) {
            Ok(stat) => reply.statfs(
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                stat.f_bsize as u32,
                255,
                stat.f_frsize as u32,
            ),
            Err(error) => reply.error(Refusal::from_i32(error.raw_os_error())),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.count(Op::Attributes);
        let flags = XattrFlags::from_bits_truncate(flags as u32);
        self.done(number.0, self.inner.set_attribute(request, number.0, name, Some((value, flags))), reply);
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.count(Op::Attributes);
        match self.inner.get_attribute(number.0, name) {
            Ok(value) => answer_attribute(reply, &value, size),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.count(Op::Attributes);
        match self.inner.list_attributes(number.0) {
            Ok(list) => answer_attribute(reply, &list, size),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(number.0))),
        }
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.count(Op::Attributes);
        self.done(number.0, self.inner.set_attribute(request, number.0, name, None), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.count(Op::Make);
        let exclusive = flags as u32 & OFlags::EXCL.bits() != 0;
        match self.inner.create_and_open(request, (parent.0, name), (mode, umask), exclusive) {
            Ok((attr, generation, handle)) => {
                reply.created(
                    &self.inner.lifetime(),
                    &attr,
                    generation,
                    Fh(handle),
                    self.inner.flags_of_open(),
                );
            }
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(parent.0))),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: Fh,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.count(Op::Other);
        let done = self.inner.allocate(number.0, handle.0, (offset, length), mode, request);
        self.done(number.0, done, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Fh,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.count(Op::Other);
        let inner = self.inner.clone();
        let unwritten = !inner.behaviour.shared && inner.table.is_written(number.0);
        let seek = move || {
            // The kernel does not write out what it still has before it asks; being told to forget it, it does. That
            // takes requests, which other threads answer meanwhile.
            if let (true, Some(notifier)) = (unwritten, inner.notifier.get()) {
                let _ = notifier.inval_inode(number, 0, 0);
            }
            match inner.seek(handle.0, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(inner.refuse(&error, || inner.described(number.0))),
            }
        };
        let later = lock(&self.inner.later).clone();
        match (later, unwritten) {
            // A thread that is gone drops the reply, and with it the request fails.
            (Some(later), true) => drop(later.send(Box::new(seek))),
            _ => seek(),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _from: INodeNo,
        from_handle: Fh,
        from_offset: u64,
        to: INodeNo,
        to_handle: Fh,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.count(Op::Other);
        match self.inner.copy((from_handle.0, from_offset), (to_handle.0, to_offset), len, request) {
            Ok(done) => reply.written(done),
            Err(error) => reply.error(self.inner.refuse(&error, || self.inner.described(to.0))),
        }
    }
}

impl<B: Backing> Inner<B> {
    /// The number shown for `.` and `..`.
    fn dot(&self, number: u64, parent: bool) -> u64 {
        if parent { self.table.parent(number).unwrap_or(ROOT) } else { number }
    }

    /// The device that a folder is on.
    fn device(&self, number: u64) -> u64 {
        let stat = self.on_thread(|thread, _| self.spot(number, thread).map(|(_, stat)| stat));
        stat.map_or(0, |stat| stat.st_dev)
    }
}

/// An entry that is not there: the kernel may remember that.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: fuser::FileType::Directory,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
