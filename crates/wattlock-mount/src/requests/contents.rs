//! What goes to a content: written, cut, searched for holes, copied, made durable.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Instant;

use fuser::{FopenFlags, INodeNo, OpenAccMode, OpenFlags, Request, WriteFlags};
use rustix::fs::{OFlags, UTIME_NOW};
use rustix::io::Errno;

use super::LARGEST;
use crate::attr::unchanged;
use crate::backing::{Backing, Result};
use crate::door::{FileHandle, Inner, Opened, errno};

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
const CAPABILITY: &str = "security.capability";

impl<B: Backing> Inner<B> {
    pub(super) fn truncate(
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
            None if size == 0 => {
                self.open_empty(number, thread)?;
                self.table.closed(number);
            }
            None => {
                let opened = self.open(number, true, thread)?;
                let done = self.backing.set_len(&opened.content, size, thread);
                self.table.closed(number);
                done?;
            }
        }
        self.table.set_len(number, size);
        if request.uid() != 0 {
            self.drop_privileges(number, None, thread)?;
        }
        Ok(())
    }

    /// Opens a file, and empties it if the program asked for that.
    pub(super) fn open_as_asked(
        &self,
        number: u64,
        flags: OpenFlags,
        request: &Request,
    ) -> Result<(Arc<Opened<B::Content>>, bool)> {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        self.on_thread(|thread, _| {
            if flags.0 & OFlags::TRUNC.bits() as i32 == 0 {
                return Ok((self.open(number, write, thread)?, write));
            }
            let opened = self.open_empty(number, thread)?;
            let owned = match request.uid() {
                0 => Ok(()),
                _ => self.drop_privileges(number, None, thread),
            };
            let timed = owned.and_then(|()| match self.behaviour.shared {
                true => self.touch(number, thread),
                false => Ok(()),
            });
            if let Err(error) = timed {
                self.table.closed(number);
                return Err(error);
            }
            Ok((opened, write))
        })
    }

    /// Takes the set-user and set-group bits from a file whose content changed, and its capabilities. The set-group bit
    /// of a file that its group may not execute goes only if the caller's `group`, where it counts, is another one.
    pub(super) fn drop_privileges(
        &self,
        number: u64,
        group: Option<u32>,
        thread: &mut B::Thread,
    ) -> Result<()> {
        let (spot, stat) = self.pinned(number, thread)?;
        let mode = stat.st_mode & 0o7777;
        let stays = mode & GROUP_EXECUTES == 0 && group.is_none_or(|group| group == stat.st_gid);
        let left = mode & !(SUID | if stays { 0 } else { SGID });
        if left != mode {
            self.chmod(&spot, &stat, left)?;
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
        let dropped = self.pinned(number, thread).and_then(|(spot, _)| {
            self.with_path(&spot, |path| self.backing.remove_attribute(path, CAPABILITY.as_ref(), thread))
        });
        // Most files have none, and some file systems have none of these attributes.
        drop(dropped);
    }

    pub(super) fn write(
        &self,
        number: u64,
        handle: u64,
        at: u64,
        data: &[u8],
        how: (WriteFlags, i32, u64),
    ) -> Result<()> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        self.on_thread(|thread, _| {
            if how.0.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_privileges(number, None, thread)?;
            } else {
                self.drop_capability(number, thread);
            }
            let append = self.behaviour.shared && how.1 as u32 & OFlags::APPEND.bits() != 0;
            match append {
                true => {
                    let at = self.backing.append(&file.opened.content, data, thread)?;
                    self.table.raise_base(number, at + data.len() as u64);
                }
                false if how.0.contains(WriteFlags::FUSE_WRITE_CACHE) => {
                    self.write_kept((number, how.2, &file.opened.content), at, data, thread)?;
                }
                false => {
                    self.backing.write(&file.opened.content, data, at, thread)?;
                    self.table.raise_base(number, at + data.len() as u64);
                }
            }
            if self.behaviour.shared {
                self.touch(number, thread)?;
            }
            Ok(())
        })
    }

    /// Writes what the kernel kept. Where that is refused, a file that was to become longer ends there, as if the
    /// program had been told at once: what the kernel kept behind it, which other threads may be writing, is refused too.
    fn write_kept(
        &self,
        (number, request, content): (u64, u64, &B::Content),
        at: u64,
        data: &[u8],
        thread: &mut B::Thread,
    ) -> Result<()> {
        let refuses = || match self.table.refuses(number, at, Instant::now()) {
            Some(errno) => Err(self::errno(Errno::from_raw_os_error(errno))),
            None => Ok(()),
        };
        let range = at..at + data.len() as u64;
        self.table.writes(number, request, range.end);
        refuses()?;
        let written = self.backing.write(content, data, at, thread).and_then(|()| refuses());
        if let Err(error) = &written
            && let Some(end) = self.table.refuse(number, (request, range), error.errno(), Instant::now())
            && self.backing.len(content) > end
        {
            // What cannot be cut off stays: it is what was stored.
            drop(self.backing.set_len(content, end, thread));
        }
        written
    }

    /// Answers a write that was refused. The kernel may have kept what it wrote, and the size that this would have made,
    /// and no answer takes that from it: it has to forget the names, which then lead to the inode as it is stored, and the
    /// pages. That takes answers to other requests, so another thread does it. The names go before the writer hears of
    /// the error.
    pub(super) fn refused(
        self: &Arc<Self>,
        number: u64,
        range: (u64, usize),
        answer: impl FnOnce() + Send + 'static,
    ) {
        let inner = self.clone();
        self.later.add(move || {
            inner.forget_names(number);
            answer();
            let forgetting = inner.clone();
            // Of the pages, others may wait for answers that come only behind this one.
            inner.pages.add(move || {
                if let Some(notifier) = forgetting.notifier.get() {
                    let _ = notifier.inval_inode(INodeNo(number), range.0 as i64, range.1 as i64);
                }
            });
        });
    }

    /// The kernel forgets the names of an inode.
    fn forget_names(&self, number: u64) {
        let Some(notifier) = self.notifier.get() else { return };
        for name in (0..).map_while(|before| self.table.name(number, before)) {
            let shown = self.on_thread(|thread, _| {
                let dir = self.dir(name.parent, thread)?;
                self.backing.name(&dir.folder, &name.stored, thread)
            });
            if let Ok(Some(shown)) = shown {
                let _ = notifier.inval_entry(INodeNo(name.parent), OsStr::from_bytes(&shown));
            }
        }
    }

    /// The modification time is now. With a writeback cache the kernel keeps it.
    fn touch(&self, number: u64, thread: &mut B::Thread) -> Result<()> {
        let (spot, stat) = self.pinned(number, thread)?;
        let mut times = unchanged();
        times.last_modification.tv_nsec = UTIME_NOW;
        self.set_times(&spot, &stat, &times, || {})
    }

    pub(super) fn allocate(
        &self,
        number: u64,
        handle: u64,
        (at, len): (u64, u64),
        mode: i32,
        request: &Request,
    ) -> Result<()> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        let content = &file.opened.content;
        let end = at
            .checked_add(len)
            .filter(|end| *end <= self.backing.longest())
            .ok_or_else(|| errno(Errno::FBIG))?;
        self.on_thread(|thread, _| {
            match request.uid() {
                0 => self.drop_capability(number, thread),
                _ => self.drop_privileges(number, Some(request.gid()), thread)?,
            }
            // Asked and done in one: the kernel may write behind the end at this moment.
            let grow = |thread: &mut B::Thread| {
                self.backing.grow(content, end, thread)?;
                self.table.set_base(number, self.backing.len(content));
                Ok(())
            };
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

    pub(super) fn seek(&self, handle: u64, at: i64, whence: i32) -> Result<i64> {
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
    pub(super) fn copy(&self, from: (u64, u64), to: (u64, u64), len: u64, request: &Request) -> Result<u32> {
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
            if done > 0 {
                self.table.raise_base(target.number, to.1 + done);
            }
            // What is copied is copied; an error that stays comes back with the next request.
            if done > 0 { Ok(()) } else { result }
        })?;
        if self.behaviour.shared {
            self.on_thread(|thread, _| self.touch(target.number, thread))?;
        }
        Ok(done as u32)
    }

    pub(super) fn sync(&self, handle: u64) -> Result<()> {
        let file = self.files.get(handle).ok_or_else(|| errno(Errno::BADF))?;
        self.backing.sync_records()?;
        let content = &file.opened.content;
        // Before the content: what it is named meanwhile is not what was asked to be durable.
        let own = self.table.own_of(file.number);
        let new = self.renamed.of(own);
        self.on_thread(|thread, _| self.backing.sync(content, thread))?;
        if let Some(new) = new {
            match &new.folders {
                Some(folders) => folders.iter().try_for_each(|folder| self.sync_name_in(*folder))?,
                None => self.sync_all()?,
            }
            self.renamed.synced(own, &new);
        }
        self.table.set_base(file.number, self.backing.len(content));
        // What is there is durable, and it is not all that was written.
        self.table.untold(file.number).map_or(Ok(()), |error| Err(errno(Errno::from_raw_os_error(error))))
    }

    pub(super) fn add_file(&self, number: u64, opened: Arc<Opened<B::Content>>, writes: bool) -> u64 {
        if writes && self.table.writer_came(number) {
            self.table.set_base(number, self.backing.len(&opened.content));
        }
        self.files.add(FileHandle { number, opened, writes })
    }

    pub(super) fn release(&self, handle: u64) {
        let Some(file) = self.files.remove(handle) else { return };
        let (number, writes) = (file.number, file.writes);
        if writes {
            self.set_time_again(number, self.backing.file(&file.opened.content).as_fd());
        }
        drop(file);
        if writes {
            self.table.writer_gone(number);
        }
        self.table.closed(number);
    }

    pub(super) fn flags_of_open(&self) -> FopenFlags {
        match self.behaviour.shared {
            true => FopenFlags::FOPEN_NOFLUSH,
            false => FopenFlags::FOPEN_NOFLUSH | FopenFlags::FOPEN_KEEP_CACHE,
        }
    }
}

/// The first `len` bytes of a buffer that grows once.
pub(super) fn filled(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
