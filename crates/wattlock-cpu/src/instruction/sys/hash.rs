//! SHA-1 and SHA-2 as plain values: a state can be copied, so a keyed hash can keep the states behind its pads, and taken
//! out and put back between blocks, so that a message can begin in lanes and end here.

use super::raw;

/// A hash function in the middle of its input. Clone to fork; wiped on drop.
pub(crate) trait Hash: Clone {
    /// A word of the state.
    type Word: Copy;
    /// Output bytes.
    const LEN: usize;
    /// Block bytes.
    const BLOCK: usize;
    /// Nothing hashed yet.
    fn new() -> Self;
    /// A message of which whole blocks are hashed, into these words; SHA-1 has five. Its length is forgotten: it cannot
    /// [`Hash::finish`].
    fn between(words: &[Self::Word; 8]) -> Self;
    /// The words, between two blocks.
    fn words(&self) -> [Self::Word; 8];
    /// Hashes more.
    fn update(&mut self, bytes: &[u8]);
    /// Writes the digest to the first [`Hash::LEN`] bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    fn finish(self, out: &mut [u8]);
}

macro_rules! hashes {
    ($($name:ident: $state:ident of $count:literal $word:ident, $len:literal, $block:literal, $init:ident, $update:ident, $final:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` (FIPS 180-4).")]
        #[derive(Clone)]
        pub(crate) struct $name(raw::$state);

        impl Hash for $name {
            type Word = $word;
            const LEN: usize = $len;
            const BLOCK: usize = $block;

            #[inline]
            fn new() -> $name {
                let mut state = std::mem::MaybeUninit::<raw::$state>::zeroed();
                // SAFETY: the call fills the structure and cannot fail; all its fields are integers, for which zero
                // is a value too.
                unsafe {
                    raw::$init(state.as_mut_ptr());
                    $name(state.assume_init())
                }
            }

            #[inline]
            fn between(words: &[$word; 8]) -> $name {
                let mut state = $name::new();
                state.0.h.copy_from_slice(&words[..$count]);
                state
            }

            #[inline]
            fn words(&self) -> [$word; 8] {
                let mut words = [0; 8];
                words[..$count].copy_from_slice(&self.0.h);
                words
            }

            #[inline]
            fn update(&mut self, bytes: &[u8]) {
                // SAFETY: the state was initialised by `new`; reads the slice. It cannot fail.
                unsafe { raw::$update(&raw mut self.0, bytes.as_ptr().cast(), bytes.len()) };
            }

            #[inline]
            fn finish(mut self, out: &mut [u8]) {
                let out = &mut out[..$len];
                // SAFETY: the state was initialised by `new`; writes as many bytes as `out` has. It cannot fail.
                unsafe { raw::$final(out.as_mut_ptr(), &raw mut self.0) };
            }
        }

        impl Drop for $name {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: writes over exactly this plain structure, which has no destructor of its own.
                unsafe { raw::OPENSSL_cleanse((&raw mut self.0).cast(), size_of::<raw::$state>()) }
            }
        }
    )*};
}

hashes! {
    Sha1: SHA_CTX of 5 u32, 20, 64, SHA1_Init, SHA1_Update, SHA1_Final;
    Sha256: SHA256_CTX of 8 u32, 32, 64, SHA256_Init, SHA256_Update, SHA256_Final;
    Sha384: SHA512_CTX of 8 u64, 48, 128, SHA384_Init, SHA384_Update, SHA384_Final;
    Sha512: SHA512_CTX of 8 u64, 64, 128, SHA512_Init, SHA512_Update, SHA512_Final;
}
