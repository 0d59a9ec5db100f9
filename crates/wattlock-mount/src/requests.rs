//! FUSE's requests: what comes from the kernel, and what goes back.

mod contents;
mod folders;
mod inodes;
mod names;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno as Refusal, FileAttr, FileHandle as Fh, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FileType, OFlags, Timestamps, XattrFlags};

use crate::attr::{device_from_fuse, kind, to_set};
use crate::backing::{Backing, Result};
use crate::caller::{Caller, Groups};
use crate::counters::Op;
use crate::door::{Door, FolderHandle, Inner, entry};
use crate::node::groups_for;
use contents::filled;
use inodes::{Wanted, answer_attribute};

/// Largest request.
pub(crate) const LARGEST: u32 = 1 << 20;
impl<B: Backing> Inner<B> {
    pub(super) fn caller(request: &Request) -> Caller {
        Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }
}

impl<B: Backing> Door<B> {
    fn entered(&self, what: (u64, &OsStr), result: Result<FileAttr>, reply: ReplyEntry) {
        match result {
            Ok(attr) => reply.entry(&self.inner.lifetime_of(&attr), &attr, Generation(0)),
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
            // A file of which nothing opens may still be emptied.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
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
                made.map(|(attr, handle)| {
                    inner.release(handle);
                    attr
                })
            }
            _ => inner.make((parent.0, name), true, |dir, entry, _| {
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
        let result = inner.make((parent.0, name), true, |dir, entry, thread| {
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
        let result = inner.make((parent.0, name), true, |dir, entry, thread| {
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

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.count(Op::Open);
        match self.inner.open_as_asked(number.0, flags, request) {
            Ok((opened, write)) => {
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
        request: &Request,
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
        let how = (write_flags, flags.0, request.unique().0);
        match self.inner.write(number.0, handle.0, offset, data, how) {
            Ok(()) => {
                self.inner.counters.bytes(true, data.len());
                reply.written(data.len() as u32);
            }
            Err(error) => {
                let refusal = self.inner.refuse(&error, || self.inner.described(number.0));
                self.inner.refused(number.0, (offset, data.len()), move || reply.error(refusal));
            }
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
        inner.on_thread(|thread, _| {
            let dir = match inner.dir(number.0, thread) {
                Ok(dir) => dir,
                Err(error) => return reply.error(inner.refuse(&error, || inner.described(number.0))),
            };
            for (at, dot) in [".", ".."].into_iter().enumerate().skip(offset as usize) {
                let mut attr = absent();
                attr.ino = INodeNo(inner.dot(number.0, at == 1));
                if reply.add(attr.ino, at as u64 + 1, dot, &inner.lifetime(), &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            let from = (offset as usize).saturating_sub(2);
            for (at, one) in listed.iter().enumerate().skip(from) {
                // What was removed since is left out, and so is what cannot be shown.
                let entry = entry(one.stored.clone());
                let mut found = None;
                let done = inner.backing.entered(&dir.folder, &mut || {
                    found = inner.found(number.0, &dir, &entry, false, thread)?;
                    Ok(())
                });
                let attr = match done.map(|()| found) {
                    Ok(Some(attr)) => attr,
                    Ok(None) => continue,
                    Err(error) => {
                        let path = || inner.table.path(number.0, &one.stored).to_string_lossy().into_owned();
                        inner.refuse(&error, path);
                        continue;
                    }
                };
                let name = OsStr::from_bytes(&one.name);
                let lifetime = inner.lifetime_of(&attr);
                if reply.add(attr.ino, at as u64 + 3, name, &lifetime, &attr, Generation(0)) {
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
            Ok((attr, handle)) => {
                let (lifetime, flags) = (self.inner.lifetime(), self.inner.flags_of_open());
                reply.created(&lifetime, &attr, Generation(0), Fh(handle), flags);
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
        match unwritten {
            true => self.inner.pages.add(seek),
            false => seek(),
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
