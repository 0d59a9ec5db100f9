//! Files that lie in memory: keys and settings, some kilobytes each. Plaintext is wiped.

use std::io::{self, Cursor, Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use wattlock_core::sync::lock;

use zeroize::Zeroizing;

use wattlock_door::{CryptoSource, Output};

use crate::{Error, Input, Opener, Progress, Sealer};

static NEVER: AtomicBool = AtomicBool::new(false);

impl Opener {
    /// As [`Opener::open`], of a file that lies in memory.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub fn open_bytes(&self, file: &[u8], source: &impl CryptoSource) -> Result<Zeroizing<Vec<u8>>, Error> {
        let memory = Memory::default();
        let input = Input::Stream(Box::new(Cursor::new(file.to_vec())));
        self.open(input, Output::Stream(Box::new(memory.clone())), source, Progress::new(&NEVER))?;
        Ok(memory.take())
    }
}

impl Sealer {
    /// As [`Sealer::seal`], of a content that lies in memory.
    ///
    /// # Errors
    /// As [`Sealer::seal`].
    pub fn seal_bytes(&self, content: &[u8], source: &impl CryptoSource) -> Result<Vec<u8>, Error> {
        let (memory, content) = (Memory::default(), Zeroizing::new(content.to_vec()));
        let input = Input::Stream(Box::new(Wiped(content, 0)));
        self.seal(input, Output::Stream(Box::new(memory.clone())), source, Progress::new(&NEVER))?;
        Ok(memory.take().to_vec())
    }
}

/// What was written so far.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Zeroizing<Vec<u8>>>>);

impl Memory {
    /// What was written; it is gone from here then.
    fn take(&self) -> Zeroizing<Vec<u8>> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut content = lock(&self.0);
        let fits = content.capacity() - content.len();
        if bytes.len() > fits {
            // Growing would leave a copy behind.
            let mut grown = Vec::with_capacity((content.len() + bytes.len()).next_power_of_two().max(4096));
            grown.extend_from_slice(&content);
            *content = Zeroizing::new(grown);
        }
        content.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads bytes that are wiped afterwards.
struct Wiped(Zeroizing<Vec<u8>>, usize);

impl Read for Wiped {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = (&self.0[self.1..]).read(to)?;
        self.1 += len;
        Ok(len)
    }
}
