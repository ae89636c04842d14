//! Where a library that was loaded at run time came from.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// The file that a function was loaded from.
pub fn file_of(function: *const ()) -> Option<PathBuf> {
    // SAFETY: dladdr fills `info` when it returns non-zero, with pointers that live as long as the library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(function.cast(), &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = Path::new(CStr::from_ptr(info.dli_fname).to_str().ok()?).to_path_buf();
        Some(name.canonicalize().unwrap_or(name))
    }
}
