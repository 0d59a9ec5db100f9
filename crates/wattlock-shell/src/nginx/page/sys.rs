//! A client of the system's libssl (OpenSSL 3): a handshake over a connected socket, reading and writing.
//!
//! The library is loaded at run time and stays loaded, so that the program starts without it and needs it for one
//! command only. Each connection has a library context of its own (OSSL_LIB_CTX_new(3)), which reads no configuration;
//! the default context's is not read either (`OPENSSL_INIT_NO_LOAD_CONFIG`).

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use anyhow::{Result, bail};

/// The library: OpenSSL keeps the functions below throughout its third major version.
const LIBRARY: &CStr = c"libssl.so.3";

/// `OPENSSL_INIT_NO_LOAD_CONFIG` (openssl/crypto.h).
const NO_CONFIG: u64 = 0x80;
/// `SSL_CTRL_SET_TLSEXT_HOSTNAME` (openssl/ssl.h).
const SET_HOST_NAME: c_int = 55;
/// `SSL_ERROR_WANT_READ`, `_WANT_WRITE`, `_SYSCALL` and `_ZERO_RETURN` (openssl/ssl.h).
const WANT_READ: c_int = 2;
const WANT_WRITE: c_int = 3;
const SYSCALL: c_int = 5;
const CLOSED: c_int = 6;

/// Declares a table of functions and how it is filled from a library.
macro_rules! table {
    ($($name:ident: $symbol:literal $kind:ty;)*) => {
        /// libssl's functions and libcrypto's, which libssl brings along.
        struct Library {
            $($name: $kind,)*
        }

        impl Library {
            /// # Safety
            /// `handle` is of a libssl of OpenSSL 3.
            unsafe fn of(handle: *mut c_void) -> Option<Library> {
                Some(Library {
                    $($name: {
                        // SAFETY: a handle of dlopen, a string with its zero.
                        let found = unsafe { libc::dlsym(handle, $symbol.as_ptr()) };
                        if found.is_null() {
                            return None;
                        }
                        // SAFETY: not null, and the library's headers give the function of that name this type.
                        unsafe { std::mem::transmute::<*mut c_void, $kind>(found) }
                    },)*
                })
            }
        }
    };
}

table! {
    init: c"OPENSSL_init_ssl" unsafe extern "C" fn(u64, *const c_void) -> c_int;
    method: c"TLS_client_method" unsafe extern "C" fn() -> *const c_void;
    library_new: c"OSSL_LIB_CTX_new" unsafe extern "C" fn() -> *mut c_void;
    library_free: c"OSSL_LIB_CTX_free" unsafe extern "C" fn(*mut c_void);
    context_new: c"SSL_CTX_new_ex" unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void) -> *mut c_void;
    context_free: c"SSL_CTX_free" unsafe extern "C" fn(*mut c_void);
    new: c"SSL_new" unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    free: c"SSL_free" unsafe extern "C" fn(*mut c_void);
    control: c"SSL_ctrl" unsafe extern "C" fn(*mut c_void, c_int, c_long, *mut c_void) -> c_long;
    set_fd: c"SSL_set_fd" unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
    connect: c"SSL_connect" unsafe extern "C" fn(*mut c_void) -> c_int;
    read: c"SSL_read" unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> c_int;
    write: c"SSL_write" unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> c_int;
    why: c"SSL_get_error" unsafe extern "C" fn(*const c_void, c_int) -> c_int;
    clear_errors: c"ERR_clear_error" unsafe extern "C" fn();
    last_error: c"ERR_peek_last_error" unsafe extern "C" fn() -> c_ulong;
    reason: c"ERR_reason_error_string" unsafe extern "C" fn(c_ulong) -> *const c_char;
}

/// The library, loaded once and never unloaded: OpenSSL leaves functions behind that run when the process ends.
fn library() -> Option<&'static Library> {
    static LOADED: OnceLock<Option<Library>> = OnceLock::new();
    let load = || {
        // SAFETY: a string with its zero; the library's own initialisers are all that runs.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: a library of this name is OpenSSL 3's.
        let library = unsafe { Library::of(handle) }?;
        // SAFETY: before any other call of the library, without settings.
        (unsafe { (library.init)(NO_CONFIG, std::ptr::null()) } == 1).then_some(library)
    };
    LOADED.get_or_init(load).as_ref()
}

/// What is freed in the order of its fields' use: connection, settings, library context.
struct Handles {
    library: &'static Library,
    context: *mut c_void,
    settings: *mut c_void,
    connection: *mut c_void,
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: each is null, which all three functions allow, or was made by the function of the same object in
        // `Tls::handshake`, and nothing else owns it; what refers goes before what it refers to.
        unsafe {
            (self.library.free)(self.connection);
            (self.library.context_free)(self.settings);
            (self.library.library_free)(self.context);
        }
    }
}

/// A connection over a socket that outlives it.
pub struct Tls<'a> {
    handles: Handles,
    _stream: &'a TcpStream,
}

impl<'a> Tls<'a> {
    /// Shakes hands, under whatever certificate. The socket's own limits of time are the handshake's.
    pub fn handshake(stream: &'a TcpStream, name: &CStr) -> Result<Tls<'a>> {
        let Some(library) = library() else {
            bail!("no {} on this machine, which reaches HTTPS", LIBRARY.to_string_lossy());
        };
        let null = std::ptr::null_mut;
        let mut handles = Handles { library, context: null(), settings: null(), connection: null() };
        // SAFETY: no arguments, or those that the call before made: a null among them is refused by the next `if`.
        // The host's name is copied (SSL_set_tlsext_host_name(3)); the socket is open for as long as `stream` is
        // borrowed, and SSL_free does not close it (SSL_set_fd(3): BIO_NOCLOSE).
        unsafe {
            handles.context = (library.library_new)();
            if !handles.context.is_null() {
                handles.settings =
                    (library.context_new)(handles.context, std::ptr::null(), (library.method)());
            }
            if !handles.settings.is_null() {
                handles.connection = (library.new)(handles.settings);
            }
            let connection = handles.connection;
            let named = name.as_ptr().cast_mut().cast();
            if connection.is_null()
                || (library.control)(connection, SET_HOST_NAME, 0, named) != 1
                || (library.set_fd)(connection, stream.as_raw_fd()) != 1
            {
                bail!("libssl makes no connection");
            }
        }
        let tls = Tls { handles, _stream: stream };
        tls.call(|library, connection| {
            // SAFETY: a connection with a socket.
            unsafe { (library.connect)(connection) }
        })?;
        Ok(tls)
    }

    /// Makes a call that gives a positive number if all is well; 0 bytes if the server closed.
    fn call(&self, call: impl FnOnce(&Library, *mut c_void) -> c_int) -> io::Result<usize> {
        let Handles { library, connection, .. } = &self.handles;
        // SAFETY: takes nothing; of this thread's errors, which SSL_get_error looks at, none may be older than the call.
        unsafe { (library.clear_errors)() };
        let result = call(library, *connection);
        if let Ok(count @ 1..) = usize::try_from(result) {
            return Ok(count);
        }
        let system = io::Error::last_os_error();
        // SAFETY: the connection, and what its last call returned.
        match unsafe { (library.why)(*connection, result) } {
            CLOSED => Ok(0),
            // A socket that blocks wants more time only when its limit is over.
            WANT_READ | WANT_WRITE => Err(io::Error::new(ErrorKind::TimedOut, "no answer in ten seconds")),
            SYSCALL if system.raw_os_error().is_none_or(|code| code == 0) => {
                Err(ErrorKind::UnexpectedEof.into())
            }
            SYSCALL => Err(system),
            // What the peer of a connection that ends without a close_notify is told (SSL_get_error(3), "BUGS").
            _ => match self.reason() {
                end if end.ends_with("unexpected eof while reading") => Err(ErrorKind::UnexpectedEof.into()),
                other => Err(io::Error::other(other)),
            },
        }
    }

    /// OpenSSL's words for what went wrong last.
    fn reason(&self) -> String {
        let library = self.handles.library;
        // SAFETY: takes nothing; a number of the library's.
        let words = unsafe { (library.reason)((library.last_error)()) };
        if words.is_null() {
            return "libssl fails and says nothing".to_owned();
        }
        // SAFETY: a string of the library's, which stays (ERR_reason_error_string(3)).
        format!("TLS: {}", unsafe { CStr::from_ptr(words) }.to_string_lossy())
    }
}

/// At most what the calls' lengths can say.
fn length(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

impl Read for Tls<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        // SAFETY: writes at most so many bytes to where there is room for them.
        self.call(|library, tls| unsafe { (library.read)(tls, to.as_mut_ptr().cast(), length(to.len())) })
    }
}

impl Write for Tls<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        // SAFETY: reads so many bytes from where they are.
        self.call(|library, tls| unsafe { (library.write)(tls, from.as_ptr().cast(), length(from.len())) })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
