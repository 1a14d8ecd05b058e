// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Libraries opened at run time, and tables of their functions. A missing library or symbol is an error with words,
//! never a panic and never a requirement at link time.

use crate::error::{Error, Result, errno};
use libloading::os::unix::{Library as Raw, RTLD_LOCAL, RTLD_NOW};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Succeeds only for a library that the process has already loaded. libloading does not export this flag on Linux.
const RTLD_NOLOAD: i32 = 4;

/// A loaded library. No library is ever unloaded, because drivers leave threads and exit handlers behind.
pub struct Library {
    raw: std::mem::ManuallyDrop<Raw>,
    /// The name in `names` by which the library was found.
    pub name: &'static str,
}

impl Library {
    /// Opens the first of `names` that can be opened; with `adopt_only`, the first that the process has already loaded.
    pub fn open(names: &[&'static str], adopt_only: bool) -> Result<Library> {
        let flags = RTLD_NOW | RTLD_LOCAL | if adopt_only { RTLD_NOLOAD } else { 0 };
        let mut why = String::new();
        let _held = super::fd::hold_standard();
        for name in names {
            // SAFETY: loading a vendor's driver library runs its constructors, which is what the caller
            // of the C API asks for by naming that vendor's memory.
            match unsafe { Raw::open(Some(*name), flags) } {
                Ok(raw) => return Ok(Library { raw: std::mem::ManuallyDrop::new(raw), name }),
                Err(_) if adopt_only => why = format!("{name} is not loaded in this process"),
                Err(e) => why = words_of(&e),
            }
        }
        Err(Error::new(errno::ENOSYS, format!("opening {}: {why}", names.join(" or "))))
    }

    /// The address of `symbol` (which ends with NUL), as a function pointer of type `F`.
    ///
    /// # Safety
    /// `F` is the function's true type.
    pub unsafe fn symbol<F: Copy>(&self, symbol: &'static str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
        // SAFETY: the caller promises that `F` is the type of the function at this address. A function pointer is a
        // non-null address, and the library is never unloaded.
        self.address(symbol).map(|at| unsafe { std::mem::transmute_copy(&at) })
    }

    /// Not generic, so that the hundreds of symbols of a table share one copy of this code.
    #[inline(never)]
    fn address(&self, symbol: &'static str) -> Option<NonNull<c_void>> {
        // SAFETY: an address of any kind is read as a `*mut c_void`, and is not dereferenced as one.
        unsafe { self.raw.get::<*mut c_void>(symbol.as_bytes()) }.ok().and_then(|at| NonNull::new(*at))
    }

    /// The error of a call whose symbol the library lacks. Not inlined, so that the hundreds of methods of a table stay
    /// small.
    #[cold]
    #[inline(never)]
    pub fn lacks(name: &str, symbol: &str) -> Error {
        Error::new(errno::ENOSYS, format!("{name} has no symbol {symbol}"))
    }
}

fn words_of(e: &libloading::Error) -> String {
    let mut text = e.to_string();
    if let Some(source) = std::error::Error::source(e) {
        text = format!("{text}: {source}");
    }
    text
}

/// Defines a table of a library's functions. Each function becomes an unsafe method, which fails with `ENOSYS` and the
/// symbol's name if the library lacks the function; `has` asks beforehand. `#[hold_standard]` marks a function that may
/// open descriptors: none of these gets the number 0, 1 or 2 (`sys::fd`).
///
/// ```ignore
/// entry_points! {
///     /// Functions of libfoo.
///     pub struct Foo {
///         #[hold_standard]
///         fn foo_open(number: c_int) -> c_int;
///     }
/// }
/// ```
macro_rules! entry_points {
    ($(#[$doc:meta])* pub struct $table:ident { $($(#[$hold:ident])? fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table {
            library: $crate::sys::dl::Library,
            $($name: Option<unsafe extern "C" fn($($type),*) -> $result>,)*
        }

        #[allow(non_snake_case, dead_code, clippy::too_many_arguments, clippy::missing_safety_doc)]
        impl $table {
            pub fn load(library: $crate::sys::dl::Library) -> Self {
                $table {
                    // SAFETY: the types in the table are those of the vendor's header.
                    $($name: unsafe { library.symbol(concat!(stringify!($name), "\0")) },)*
                    library,
                }
            }

            /// The name under which the library was opened.
            pub fn library(&self) -> &'static str {
                self.library.name
            }

            /// True if the library has the symbol of this name.
            pub fn has(&self, symbol: &str) -> bool {
                $(if symbol == stringify!($name) { return self.$name.is_some(); })*
                false
            }

            $(
                /// # Safety
                /// As the vendor's documentation of the function of this name demands.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) -> $crate::error::Result<$result> {
                    $(let _held = $crate::sys::fd::$hold();)?
                    match self.$name {
                        // SAFETY: the caller keeps to the vendor's documentation of the function.
                        Some(f) => Ok(unsafe { f($($arg),*) }),
                        None => Err($crate::sys::dl::Library::lacks(self.library.name, stringify!($name))),
                    }
                }
            )*
        }
    };
}

pub(crate) use entry_points;
