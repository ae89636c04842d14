//! JPEG decoding by libjpeg-turbo, where the system has it.
//!
//! Its TurboJPEG interface (turbojpeg.h of version 2; version 3 kept these functions), loaded at run time: nothing of
//! it is needed to build. Images are decoded at their full size, with the accurate inverse DCT and interpolated chroma,
//! as PIL and torchvision have them decoded. The only file of this module with unsafe code.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_ulong, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library;

use super::picture::{BEST_JPEG, Picture, plausible};

const SONAME: &str = "libturbojpeg.so.0";

/// `TJCS_RGB`, `TJCS_YCbCr` and `TJCS_GRAY`: what it makes RGB or grey of. Of CMYK it makes only CMYK.
const RGB: c_int = 0;
const YCBCR: c_int = 1;
const GREY: c_int = 2;
/// `TJPF_RGB` and `TJPF_GRAY`.
const AS_RGB: c_int = 0;
const AS_GREY: c_int = 6;
/// `TJFLAG_LIMITSCANS`: a progressive file of very many scans, which would take hours, is an error.
const LIMIT_SCANS: c_int = 32768;
/// `TJERR_FATAL`. What is less grave (bytes too many, an odd marker) stops no other program either.
const FATAL: c_int = 1;

type Handle = NonNull<c_void>;

/// The loaded library.
pub struct Turbo {
    init: unsafe extern "C" fn() -> Option<Handle>,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    header: unsafe extern "C" fn(
        Handle,
        *const c_uchar,
        c_ulong,
        *mut c_int,
        *mut c_int,
        *mut c_int,
        *mut c_int,
    ) -> c_int,
    decompress: unsafe extern "C" fn(
        Handle,
        *const c_uchar,
        c_ulong,
        *mut c_uchar,
        c_int,
        c_int,
        c_int,
        c_int,
        c_int,
    ) -> c_int,
    error_text: unsafe extern "C" fn(Handle) -> *const c_char,
    error_code: unsafe extern "C" fn(Handle) -> c_int,
    // The functions live as long as this does.
    _library: Library,
}

/// The process's library, loaded by the first call.
///
/// # Errors
/// Why there is none.
pub fn library() -> Result<&'static Turbo, String> {
    static LIBRARY: OnceLock<Result<Turbo, String>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Turbo, String> {
    // SAFETY: libjpeg-turbo has no constructors that could do harm.
    let library = unsafe { Library::new(SONAME) }.map_err(|error| format!("{SONAME}: {error}"))?;
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the types above are those of turbojpeg.h.
            *unsafe { library.get($name) }
                .map_err(|_| format!("{SONAME} is older than libjpeg-turbo 2.0, which is needed"))?
        };
    }
    Ok(Turbo {
        init: function!(b"tjInitDecompress\0"),
        destroy: function!(b"tjDestroy\0"),
        header: function!(b"tjDecompressHeader3\0"),
        decompress: function!(b"tjDecompress2\0"),
        error_text: function!(b"tjGetErrorStr2\0"),
        error_code: function!(b"tjGetErrorCode\0"),
        _library: library,
    })
}

/// One thread's decoder, with the memory that it needs from one image to the next.
struct Decoder(&'static Turbo, Handle);

thread_local! {
    static DECODER: std::cell::OnceCell<Option<Decoder>> = const { std::cell::OnceCell::new() };
}

impl Turbo {
    /// Decodes a JPEG file; false where its colours are none that the library can turn into RGB.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn decode(&'static self, bytes: &[u8], picture: &mut Picture) -> Result<bool, String> {
        DECODER.with(|decoder| {
            // SAFETY: takes nothing; what it gives is destroyed with the thread.
            let make = || unsafe { (self.init)() }.map(|handle| Decoder(self, handle));
            match decoder.get_or_init(make) {
                Some(decoder) => decoder.decode(bytes, picture),
                None => Err("libjpeg-turbo has no memory for a decoder".into()),
            }
        })
    }
}

impl Decoder {
    fn decode(&self, bytes: &[u8], picture: &mut Picture) -> Result<bool, String> {
        let Decoder(turbo, handle) = *self;
        let (mut width, mut height, mut sampling, mut colours) = (0, 0, 0, 0);
        // SAFETY: the handle is this thread's own; `bytes` and the four numbers live throughout the call.
        let failed = unsafe {
            (turbo.header)(
                handle,
                bytes.as_ptr(),
                bytes.len() as c_ulong,
                &mut width,
                &mut height,
                &mut sampling,
                &mut colours,
            )
        };
        self.check(failed)?;
        let (channels, format) = match colours {
            RGB | YCBCR => (3, AS_RGB),
            GREY => (1, AS_GREY),
            _ => return Ok(false),
        };
        let side = |side: c_int| usize::try_from(side).unwrap_or(0);
        plausible(side(height), side(width), bytes.len(), BEST_JPEG)?;
        picture.reshape(side(height), side(width), channels);
        // SAFETY: as above; the picture has height × width × channels bytes, rows one after the other (pitch 0), and it
        // is this size that the library is told, whatever it reads in the file now.
        let failed = unsafe {
            (turbo.decompress)(
                handle,
                bytes.as_ptr(),
                bytes.len() as c_ulong,
                picture.pixels.as_mut_ptr(),
                width,
                0,
                height,
                format,
                LIMIT_SCANS,
            )
        };
        self.check(failed)?;
        Ok(true)
    }

    fn check(&self, failed: c_int) -> Result<(), String> {
        let Decoder(turbo, handle) = *self;
        // SAFETY: the handle is this thread's own; the text is the library's, and copied before the next call.
        unsafe {
            if failed == 0 || (turbo.error_code)(handle) != FATAL {
                return Ok(());
            }
            let text = CStr::from_ptr((turbo.error_text)(handle)).to_string_lossy();
            Err(format!("corrupt JPEG file ({text})"))
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: made by this library, and used by nobody any more.
        unsafe { (self.0.destroy)(self.1) };
    }
}
