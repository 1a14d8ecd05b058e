// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Neuron memory against the fake runtime of `c-tests/fakes`; `fakes` says how the cases run.

mod fakes;

use fakes::{Case, fails, fault, fds, pattern, refused};
use gdrfab::error::{Result, errno};
use gdrfab::hmem::{self, Dir, Iface, Interface};
use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

const CASES: &[Case] = &[
    ("ours", "", &[], ours),
    ("foreign", "", &[], foreign),
    ("foreign in an old runtime", "old", &[], foreign_old),
    ("not initialised", "", &[], not_initialised),
    ("adopted", "", &[("GDRFAB_HMEM_DRIVER", "adopt")], adopted),
    ("without addresses", "", &[("NEURON_RT_MAP_HBM", "0")], without_addresses),
    ("no core", "", &[("FAKE_DEVICES", "0")], no_core),
    ("faults", "", &[], faults),
];

/// The application's side.
struct App(Library);

impl App {
    fn new() -> App {
        // SAFETY: the fake has no constructors.
        App(unsafe { Library::new("libnrt.so.1") }.unwrap())
    }

    fn init(self) -> App {
        type Init = unsafe extern "C" fn(c_int, *const c_char, *const c_char) -> c_int;
        // SAFETY: the prototype of nrt.h.
        assert_eq!(unsafe { self.0.get::<Init>(b"nrt_init\0").unwrap()(1, c"".as_ptr(), c"".as_ptr()) }, 0);
        self
    }

    /// A tensor of the application's own: (handle, address).
    fn tensor(&self, core: c_int, len: usize) -> (*mut c_void, u64) {
        type Allocate = unsafe extern "C" fn(c_int, c_int, usize, *const c_char, *mut *mut c_void) -> c_int;
        type GetVa = unsafe extern "C" fn(*const c_void) -> *mut c_void;
        let mut tensor = null_mut();
        // SAFETY: the prototypes of nrt.h.
        unsafe {
            assert_eq!(self.0.get::<Allocate>(b"nrt_tensor_allocate\0").unwrap()(0, core, len, c"app".as_ptr(), &mut tensor), 0);
            (tensor, self.0.get::<GetVa>(b"nrt_tensor_get_va\0").unwrap()(tensor) as u64)
        }
    }

    fn free(&self, mut tensor: *mut c_void) {
        // SAFETY: the prototype of nrt.h.
        unsafe { self.0.get::<unsafe extern "C" fn(*mut *mut c_void)>(b"nrt_tensor_free\0").unwrap()(&mut tensor) }
    }
}

#[test]
fn neuron() {
    fakes::each(CASES, &[]);
}

fn up() -> &'static dyn Interface {
    hmem::get(Iface::Neuron).unwrap()
}

fn store(to: u64, bytes: &[u8]) -> Result<()> {
    fakes::store(up(), 0, to, bytes)
}

fn load(from: u64, len: usize) -> Result<Vec<u8>> {
    fakes::load(up(), 0, from, len)
}

/// The contents of the dma-buf of `[addr, addr+len)`, read through its file.
fn exported(addr: u64, len: usize) -> Result<Vec<u8>> {
    let buf = up().export_dmabuf(addr, len as u64, false)?;
    assert!(buf.offset + len as u64 <= buf.len);
    let mut bytes = vec![0; len];
    let file = std::fs::File::open(format!("/proc/self/fd/{}", buf.fd.as_raw_fd())).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, buf.offset).unwrap();
    Ok(bytes)
}

fn ours() {
    let _app = App::new().init();
    let up = up();
    assert_eq!(up.devices().len(), 2);
    assert!(up.devices().iter().all(|d| d.dmabuf.is_none() && d.ipc.is_some()));
    let len = 3 << 20;
    let a = up.alloc(1, len - 5).unwrap();
    let found = up.detect(a + 4097).unwrap().unwrap();
    assert_eq!((found.base, found.len, found.device, found.iface), (a, len, 1, Iface::Neuron));
    assert_eq!(hmem::span(up, a + 1, len - 1).unwrap(), [found]);
    let bytes = pattern(2 << 20);
    store(a + 3, &bytes).unwrap();
    assert_eq!(load(a + 3, bytes.len()).unwrap(), bytes);
    assert_eq!(exported(a + 5000, 70000).unwrap(), bytes[4997..74997]);
    let b = up.alloc(0, len).unwrap();
    assert_eq!(b, a + len, "the fake allocates neighbours");
    // SAFETY: device memory on both sides.
    unsafe { up.copy(0, Dir::Within, b + 1, a + 3, bytes.len()).unwrap() };
    assert_eq!(load(b + 1, bytes.len()).unwrap(), bytes);
    let mut stream = up.stream(0).unwrap();
    // SAFETY: a static slice.
    assert_eq!(unsafe { stream.post(Dir::ToDevice, b, b"static".as_ptr() as u64, 6) }.unwrap(), 1);
    assert_eq!((stream.done().unwrap(), load(b, 6).unwrap()), (1, b"static".to_vec()));
    // A copy that leaves the tensor for mapped but foreign memory is refused; one that goes on into the next tensor is not.
    assert_eq!(store(b + len - 1, &[1; 8192]).unwrap_err().errno, errno::EINVAL);
    store(a + len - 1, b"xy").unwrap();
    assert_eq!(load(a + len - 1, 2).unwrap(), b"xy");
    assert_eq!(up.export(&found).unwrap_err().errno, errno::EOPNOTSUPP);
    up.free(a).unwrap();
    assert_eq!(up.free(a).unwrap_err().errno, errno::EINVAL);
    let again = up.alloc(1, len).unwrap();
    assert_eq!(again, a);
    assert_ne!(up.identity(a), Some(found.id));
    assert!(up.detect(&raw const len as u64).unwrap().is_none());
    assert_eq!(up.alloc(2, 1).unwrap_err().errno, errno::ENODEV);
    assert_eq!(up.alloc(0, 0).unwrap_err().errno, errno::EINVAL);
}

fn foreign() {
    let app = App::new().init();
    let (tensor, a) = app.tensor(1, 1 << 20);
    let found = up().detect(a + 9999).unwrap().unwrap();
    assert!(found.id == 0 && found.base <= a && found.end() >= a + (1 << 20));
    assert_eq!(hmem::detect(a).unwrap().iface, Iface::Neuron);
    let bytes = pattern(100_000);
    store(a + 7, &bytes).unwrap();
    let before = fds();
    assert_eq!(load(a + 7, bytes.len()).unwrap(), bytes);
    assert_eq!(exported(a + 7, bytes.len()).unwrap(), bytes);
    assert_eq!(fds(), before);
    assert_eq!(hmem::detect(&raw const before as u64).unwrap().iface, Iface::System);
    // Memory that is mapped but not allocated can be queried, but not exported.
    app.free(tensor);
    assert_eq!(exported(a, 1).unwrap_err().errno, errno::EOPNOTSUPP);
}

fn foreign_old() {
    let app = App::new().init();
    let (tensor, a) = app.tensor(0, 5 << 20);
    let (_, b) = app.tensor(0, 4096);
    let before = fds();
    for _ in 0..2 {
        let found = up().detect(a + 5).unwrap().unwrap();
        assert_eq!((found.base, found.len, found.id), (a, 5 << 20, 0));
    }
    assert_eq!(up().detect(b).unwrap().unwrap().len, 4096);
    assert_eq!(fds(), before);
    let bytes = pattern(9000);
    store(a + 1, &bytes).unwrap();
    assert_eq!((load(a + 1, 9000).unwrap(), exported(a + 1, 9000).unwrap()), (bytes.clone(), bytes));
    assert!(store(before as *const u8 as u64, &[1]).is_err());
    app.free(tensor);
    assert!(up().detect(a).unwrap().is_none());
}

fn not_initialised() {
    let up = up();
    fails(up.alloc(0, 4096), errno::ENODEV, "nrt_init");
    assert!(up.detect(&raw const up as u64).unwrap().is_none());
    let _app = App::new().init();
    assert!(up.alloc(0, 4096).is_ok());
}

fn adopted() {
    let e = hmem::get(Iface::Neuron).map(|_| ()).unwrap_err();
    assert!(e.words.contains("not loaded"), "{e}");
    let app = App::new();
    refused(Iface::Neuron, errno::ENODEV, "NRT_UNINITIALIZED");
    let _app = app.init();
    assert!(hmem::get(Iface::Neuron).is_ok());
}

fn without_addresses() {
    let _app = App::new().init();
    fails(up().alloc(0, 4096), errno::EOPNOTSUPP, "NEURON_RT_MAP_HBM");
}

fn no_core() {
    refused(Iface::Neuron, errno::ENODEV, "");
}

fn faults() {
    let app = App::new().init();
    let up = up();
    let (a, (_, f)) = (up.alloc(0, 8192).unwrap(), app.tensor(0, 8192));
    let before = fds();
    for (text, errno, words) in [
        ("nrt_get_dmabuf_fd_v2=4", errno::EINVAL, "NRT_RESOURCE"),
        ("nrt_get_dmabuf_fd_v2=2", errno::EOPNOTSUPP, "NRT_INVALID"),
        ("nrt_get_dmabuf_fd_v2=4711", errno::EOPNOTSUPP, "4711"),
    ] {
        fault(text);
        let e = exported(a, 4096).unwrap_err();
        assert!(e.errno == errno && e.words.contains(words), "{text}: {e}");
    }
    // Without a dma-buf there is no way out of foreign memory, and the error text has both reasons.
    let e = load(f, 10).unwrap_err();
    assert!(e.errno == errno::ENOSYS && e.words.contains("4711") && e.words.contains("Bad address"), "{e}");
    fault("nrt_tensor_allocate=4,nrt_tensor_read=6,nrt_tensor_write=5");
    assert_eq!(up.alloc(0, 1).unwrap_err().errno, errno::ENOMEM);
    assert_eq!(load(a, 1).unwrap_err().errno, errno::EIO);
    assert_eq!(store(a, &[1]).unwrap_err().errno, errno::ETIMEDOUT);
    fault("nrt_memcpy_to_device=1");
    assert_eq!(store(f, &[1]).unwrap_err().errno, errno::EIO);
    fault("");
    assert_eq!(fds(), before);
    store(a, &[1]).unwrap();
}
