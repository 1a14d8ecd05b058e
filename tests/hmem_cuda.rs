// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CUDA's interface against a driver: the fakes in the directory that GDRFAB_FAKES names (see c-tests/fakes/build.sh), or the machine's own
//! with GDRFAB_FAKES=real. The test runs itself again, with the library path set, once for each kind of driver, and as the process that
//! imports.

mod fakes;

use cudarc::driver::sys::{CUmemPoolProps, CUmemoryPool};
use fakes::{fault, fds, hex, unhex};
use gdrfab::error::errno;
use gdrfab::hmem::cuda::{self, driver::Driver};
use gdrfab::hmem::{self, Dir, Export, Interface, MemoryKind, Offer, Stream};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

const BYTES: usize = 100_000;

fn again(stage: &str, library_path: Option<&str>, vars: &[(&str, String)]) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "stage", "--ignored", "--nocapture", "--test-threads=1"]).env("STAGE", stage);
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command.envs(vars.iter().map(|(name, value)| (name, value))).status().unwrap().success()
}

#[test]
fn cuda() {
    let Ok(fakes) = std::env::var("GDRFAB_FAKES") else {
        println!("skipped: GDRFAB_FAKES names no directory with the fake drivers");
        return;
    };
    if fakes == "real" {
        assert!(again("whole", None, &[]) && again("adopt", None, &[]));
        return;
    }
    assert!(again("whole", Some(&fakes), &[]), "a new driver");
    assert!(again("whole", Some(&fakes), &[("FAKE_DELAY_US", "300".into()), ("FAKE_DEVICES", "1".into())]), "a slow one");
    assert!(again("old", Some(&format!("{fakes}/old")), &[]), "an old driver");
    assert!(again("faults", Some(&fakes), &[]), "a driver that fails");
    assert!(again("adopt", Some(&fakes), &[]), "a driver that is not ours to open");
    assert!(again("none", Some(&fakes), &[("FAKE_DEVICES", "0".into())]), "no device");
}

#[test]
#[ignore = "run by the test above, in a process of its own for each driver"]
fn stage() {
    match std::env::var("STAGE").as_deref() {
        Ok("whole") => whole(),
        Ok("old") => old(),
        Ok("faults") => faults(),
        Ok("import") => import(),
        Ok("none") => assert_eq!(cuda::open(false).err().map(|e| e.errno), Some(errno::ENODEV)),
        Ok("adopt") => {
            assert_eq!(cuda::open(true).err().map(|e| e.errno), Some(errno::ENOSYS), "nobody has loaded the driver");
            let theirs = Driver::open(false).unwrap();
            assert_eq!(cuda::open(true).err().map(|e| e.errno), Some(errno::ENODEV), "nobody has initialised it");
            // SAFETY: cuInit takes only a number.
            assert_eq!(unsafe { theirs.cuInit(0) }.unwrap(), 0);
            assert!(!cuda::open(true).unwrap().devices().is_empty());
        }
        _ => {}
    }
}

/// The driver as a program uses it.
struct Program {
    driver: Driver,
    extra: libloading::Library,
}

macro_rules! call {
    ($of:expr, $name:ident($($arg:expr),*)) => {
        // SAFETY: the arguments have the types and values that the driver expects.
        assert_eq!(unsafe { $of.driver.$name($($arg),*) }.unwrap(), 0, stringify!($name))
    };
}

impl Program {
    fn new() -> Program {
        let driver = Driver::open(false).unwrap();
        // SAFETY: the library is loaded already, so no constructor runs.
        Program { driver, extra: unsafe { libloading::Library::new("libcuda.so.1") }.unwrap() }
    }

    fn context(&self, device: i32) {
        let mut context = std::ptr::null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&mut context, device));
        call!(self, cuCtxPushCurrent_v2(context));
    }

    fn plain(&self, len: usize) -> u64 {
        let mut at = 0;
        call!(self, cuMemAlloc_v2(&mut at, len));
        at
    }

    fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the callers give the true types.
        unsafe { *self.extra.get::<F>(name.as_bytes()).unwrap() }
    }

    fn pool(&self, handle_types: u32) -> CUmemoryPool {
        let make: unsafe extern "C" fn(*mut CUmemoryPool, *const CUmemPoolProps) -> c_int = self.symbol("cuMemPoolCreate");
        // SAFETY: zero is a value of every member.
        let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
        let mut pool = std::ptr::null_mut();
        // SAFETY: three enums and an int, in this order: type, handle types, location.
        unsafe {
            (&raw mut props).cast::<[u32; 4]>().write([1, handle_types, 1, 0]);
            assert_eq!(make(&mut pool, &props), 0);
        }
        pool
    }

    fn pooled(&self, pool: CUmemoryPool, len: usize) -> u64 {
        let get: unsafe extern "C" fn(*mut u64, usize, CUmemoryPool, *mut c_void) -> c_int = self.symbol("cuMemAllocFromPoolAsync");
        let mut at = 0;
        // SAFETY: a live pool, the default stream.
        unsafe { assert_eq!(get(&mut at, len, pool, std::ptr::null_mut()), 0) };
        call!(self, cuStreamSynchronize(std::ptr::null_mut()));
        at
    }

    fn managed(&self, len: usize) -> u64 {
        let get: unsafe extern "C" fn(*mut u64, usize, c_uint) -> c_int = self.symbol("cuMemAllocManaged");
        let mut at = 0;
        // SAFETY: 1 is "for everybody".
        unsafe { assert_eq!(get(&mut at, len, 1), 0) };
        at
    }
}

fn store(up: &dyn Interface, to: u64, bytes: &[u8]) {
    let device = up.detect(to).unwrap().unwrap().device;
    fakes::store(up, device, to, bytes).unwrap();
}

fn load(up: &dyn Interface, from: u64, len: usize) -> Vec<u8> {
    let device = up.detect(from).unwrap().unwrap().device;
    fakes::load(up, device, from, len).unwrap()
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn wait(stream: &mut dyn Stream, number: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while stream.done().unwrap() < number {
        assert!(Instant::now() < end, "copy {number} does not end");
    }
}

fn timed<T>(what: &str, mut f: impl FnMut() -> T) {
    f();
    let start = Instant::now();
    (0..1000).for_each(|_| drop(f()));
    println!("{what}: {:.2} us", start.elapsed().as_secs_f64() * 1e3);
}

/// Lets another process map the memory, read it and write to it.
fn share(up: &dyn Interface, list: &[Export], wanted: &str) {
    let mut kept: Vec<OwnedFd> = Vec::new();
    let mut offers = Vec::new();
    for (i, e) in list.iter().enumerate() {
        store(up, e.base, &pattern(i as u8));
        let fd = e.fd.as_ref().map(|fd| rustix::io::dup(fd).unwrap());
        let number = fd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
        offers.push(format!("{} {} {} {} {}", e.how, e.len, number, hex(&e.device), hex(&e.handle)));
        kept.extend(fd);
    }
    assert!(again("import", None, &[("OFFERS", offers.join("/")), ("WANTED", wanted.into())]), "the importing process, for {wanted}");
    for (i, e) in list.iter().enumerate() {
        assert!(load(up, e.base, BYTES) == pattern(100 + i as u8), "what the other process wrote into {}", e.how);
    }
}

fn import() {
    let up: &'static dyn Interface = Box::leak(cuda::open(false).unwrap());
    let wanted = std::env::var("WANTED").unwrap().parse::<u32>().ok();
    let mut kept = Vec::new();
    for (i, text) in std::env::var("OFFERS").unwrap().split('/').enumerate() {
        let part: Vec<&str> = text.split(' ').collect();
        let fd: i32 = part[2].parse().unwrap();
        let offer = Offer {
            how: part[0].parse().unwrap(),
            len: part[1].parse().unwrap(),
            // SAFETY: the descriptor was inherited for this use.
            fd: (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) }),
            device: unhex(part[3]),
            handle: unhex(part[4]),
        };
        let one = up.import(&offer, wanted).unwrap();
        drop(up.import(&offer, wanted).unwrap());
        let two = up.import(&offer, Some(up.devices().len() as u32 - 1)).unwrap();
        if let Some(wanted) = wanted {
            assert_eq!(one.device, wanted);
        }
        let found = up.detect(one.base + 10).unwrap().unwrap();
        assert_eq!((found.kind, found.base), (MemoryKind::Imported, one.base));
        assert_eq!(up.export(&found).unwrap_err().errno, errno::EOPNOTSUPP);
        assert!(up.import(&Offer { len: 1 << 50, ..offer }, wanted).is_err(), "more than there is");
        assert!(up.import(&Offer { handle: [7; 64], fd: None, ..offer }, wanted).is_err(), "nonsense");
        assert!(load(up, one.base, BYTES) == pattern(i as u8), "what the other process sees of {}", offer.how);
        drop(one);
        assert!(load(up, two.base, BYTES) == pattern(i as u8), "what the other process sees of {}", offer.how);
        let (new, mut stream) = (pattern(100 + i as u8), up.stream(two.device).unwrap());
        // SAFETY: both buffers outlive the wait below.
        let number = unsafe { stream.post(Dir::ToDevice, two.base, new.as_ptr() as u64, BYTES) }.unwrap();
        wait(&mut *stream, number);
        kept.push(two);
    }
    let bases: Vec<u64> = kept.iter().map(|i| i.base).collect();
    drop(kept);
    assert!(bases.iter().all(|base| !matches!(up.detect(*base), Ok(Some(_)))), "imports are gone");
}

/// Memory that several users need pinned stays pinned until the last one releases it. Memory that the application pinned stays so as long
/// as the application wants.
fn pinned_together(up: &dyn Interface, program: &Program, memory: &[u8]) {
    let page = gdrfab::sys::mem::page_size() as u64;
    let first = (memory.as_ptr() as u64).next_multiple_of(page);
    let at = |i: u64| first + i * page;
    let is_pinned = |i: u64| up.detect(at(i)).unwrap().is_some();
    let (a, b, inside) = (up.pin(at(0), 2 * page).unwrap(), up.pin(at(0), 2 * page).unwrap(), up.pin(at(1), page).unwrap());
    assert!(up.reaches(0, at(0), 2 * page) && !up.reaches(0, at(0), 3 * page));
    drop(a);
    assert!(is_pinned(0), "another needs it");
    drop(b);
    assert!(is_pinned(1), "another needs a part");
    // Reaches beyond the pinned memory.
    let behind = up.pin(at(3), page).unwrap();
    assert!(!up.reaches(0, at(0), 4 * page), "a hole between both");
    let over = up.pin(at(0), 4 * page).unwrap();
    drop((inside, behind));
    assert!(is_pinned(0) && is_pinned(3) && !is_pinned(2), "kept by the one that came last");
    drop(over);
    assert!((0..4).all(|i| !is_pinned(i)));

    call!(program, cuMemHostRegister_v2(at(0) as *mut _, 2 * page as usize, 1));
    assert!(up.pin(at(0), 2 * page).unwrap().0.is_none() && is_pinned(0), "the application's");
    call!(program, cuMemHostUnregister(at(0) as *mut _));
    assert!(!is_pinned(0));
}

fn whole() {
    let up: &'static dyn Interface = Box::leak(cuda::open(false).unwrap());
    let program = Program::new();
    let devices = up.devices();
    println!("{devices:?}");
    let host = [0u8; 64];
    assert_eq!(up.detect(host.as_ptr() as u64).unwrap(), None);
    assert!(up.identity(host.as_ptr() as u64).is_none());

    // Detection and the plain allocator change no context of this thread.
    let made = up.alloc(0, BYTES as u64).unwrap();
    let mut current = std::ptr::null_mut();
    call!(program, cuCtxGetCurrent(&mut current));
    assert!(current.is_null());
    let segment = up.detect(made + 5).unwrap().unwrap();
    assert_eq!((segment.kind, segment.base, segment.device), (MemoryKind::Segment, made, 0));
    program.context(0);
    let (plain, second) = (program.plain(BYTES), program.plain(BYTES));
    let found = up.detect(second + 100).unwrap().unwrap();
    assert_eq!((found.kind, found.base, found.len), (MemoryKind::Plain, second, BYTES as u64));
    assert_eq!(up.identity(second), Some(found.id));
    let managed = up.detect(program.managed(8192)).unwrap().unwrap();
    assert_eq!(managed.kind, MemoryKind::Managed);
    assert_eq!(up.export(&managed).unwrap_err().errno, errno::EOPNOTSUPP);

    // Memory at a reused address is not the freed memory.
    call!(program, cuMemFree_v2(plain));
    let plain = program.plain(BYTES);
    assert_ne!(up.identity(plain), Some(found.id));

    // Several segments side by side are one span.
    let (mut va, len) = (0, segment.len as usize);
    call!(program, cuMemAddressReserve(&mut va, len * 3, 0, 0, 0));
    let mut handle = 0;
    call!(program, cuMemRetainAllocationHandle(&mut handle, made as *mut _));
    call!(program, cuMemMap(va, len, 0, handle, 0));
    call!(program, cuMemMap(va + len as u64, len, 0, handle, 0));
    let parts = hmem::span(up, va + 100, 2 * segment.len - 100).unwrap();
    assert_eq!(parts.iter().map(|p| (p.base, p.len)).collect::<Vec<_>>(), [(va, segment.len), (va + segment.len, segment.len)]);
    assert_ne!(parts[0].id, parts[1].id);
    assert!(hmem::span(up, va, 3 * segment.len).is_err());

    // dma-bufs, unaligned; a refusal of the driver has an error text.
    let export = up.export_dmabuf(second + 100, 5000, false).unwrap();
    let page = gdrfab::sys::mem::page_size() as u64;
    assert_eq!((export.offset, export.len % page), ((second + 100) % page, 0));
    assert_eq!(up.export_dmabuf(managed.base, 100, false).unwrap_err().errno, errno::EOPNOTSUPP);
    println!("pcie: {:?}", up.export_dmabuf(second, 5000, true).err());

    // Copies.
    store(up, plain, &pattern(1));
    // SAFETY: both are device memory of that length.
    unsafe { up.copy(0, Dir::Within, made, plain, BYTES) }.unwrap();
    assert!(load(up, made, BYTES) == pattern(1));
    // SAFETY: the copy is refused before it begins.
    let e = unsafe { up.copy(0, Dir::FromDevice, host.as_ptr() as u64, va + 2 * segment.len, 64) }.unwrap_err();
    println!("{e}");

    // A deep stream, asked from a thread without a context.
    let mut stream = up.stream(0).unwrap();
    let (big, mut back) = (pattern(9), vec![0u8; BYTES]);
    pinned_together(up, &program, &back);
    // Pinned only in the middle, which the driver does not copy in one operation.
    let middle = (back.as_ptr() as u64).next_multiple_of(page) + page;
    let _pinned = up.pin(middle, page).unwrap();
    let last = (0..40).map(|i| {
        // SAFETY: everything outlives the wait below.
        unsafe { stream.post(Dir::ToDevice, plain + i * 2000, big[i as usize * 2000..].as_ptr() as u64, 2000) }.unwrap()
    });
    assert_eq!(last.last(), Some(40));
    // SAFETY: both buffers outlive the wait below.
    unsafe { stream.post(Dir::FromDevice, back.as_mut_ptr() as u64, plain, 80_000) }.unwrap();
    std::thread::scope(|s| s.spawn(|| wait(&mut *stream, 41)).join().unwrap());
    assert!(back[..80_000] == big[..80_000]);

    // After a stream of the caller's.
    let mut theirs = std::ptr::null_mut();
    call!(program, cuStreamCreate(&mut theirs, 1));
    call!(program, cuMemcpyHtoDAsync_v2(made, big.as_ptr().cast(), BYTES, theirs));
    stream.after(theirs as u64).unwrap();
    stream.after(0).unwrap();
    // SAFETY: everything outlives the wait below.
    let number = unsafe { stream.post(Dir::FromDevice, back.as_mut_ptr() as u64, made, BYTES) }.unwrap();
    wait(&mut *stream, number);
    assert!(back == big);

    // Another process, for each kind of memory and each device.
    let pool = program.pool(1);
    let lent = [program.pooled(pool, BYTES), program.pooled(pool, BYTES)];
    let lonely = up.detect(program.pooled(program.pool(0), BYTES)).unwrap().unwrap();
    let e = up.export(&lonely).unwrap_err();
    assert!(lonely.kind == MemoryKind::Pool && e.errno == errno::EOPNOTSUPP, "{e}");
    println!("{e}");
    let mut open = Vec::new();
    for wanted in ["none".to_string()].into_iter().chain((0..devices.len()).map(|d| d.to_string())) {
        let list: Vec<Export> =
            [plain, second, made, lent[0], lent[1]].map(|at| up.export(&up.detect(at).unwrap().unwrap()).unwrap()).into();
        assert_eq!(list.iter().map(|e| e.how).collect::<Vec<_>>(), [1, 1, 2, 3, 3]);
        share(up, &list, &wanted);
        open.push(fds());
    }
    // Compared after the first use, because the driver opens some for itself then.
    assert!(open.windows(2).all(|w| w[0] == w[1]), "descriptors left open: {open:?}");

    timed("identity", || up.identity(plain));
    timed("detect", || up.detect(plain));
    for at in [plain, made, lent[0]] {
        let found = up.detect(at).unwrap().unwrap();
        timed(&format!("export of {}", found.kind.name()), || up.export(&found));
    }
    timed("dma-buf of 64 KiB", || up.export_dmabuf(made, 65536, false));
    let mut number = 0;
    timed("8 KiB, one at a time", || {
        // SAFETY: both are device memory.
        number = unsafe { stream.post(Dir::Within, made, plain, 8192) }.unwrap();
        wait(&mut *stream, number);
    });
    let raw = || {
        call!(program, cuMemcpyAsync(made, plain, 8192, theirs));
        // SAFETY: the stream is this test's own.
        while unsafe { program.driver.cuStreamQuery(theirs) }.unwrap() != 0 {}
    };
    timed("8 KiB, one at a time, the driver alone", raw);
    timed("8 KiB, sixteen deep", || {
        // SAFETY: both are device memory.
        number = unsafe { stream.post(Dir::Within, made, plain, 8192) }.unwrap();
        wait(&mut *stream, number.saturating_sub(15));
    });
    wait(&mut *stream, number);
    drop(stream);
    up.free(made).unwrap();
    assert_eq!(up.free(made).unwrap_err().errno, errno::EINVAL);
}

fn old() {
    let up: &'static dyn Interface = Box::leak(cuda::open(false).unwrap());
    let made = up.alloc(0, BYTES as u64).unwrap();
    let found = up.detect(made + 5).unwrap().unwrap();
    assert_eq!((found.kind, found.base, found.len), (MemoryKind::Plain, made, BYTES as u64));
    assert_eq!(up.detect(&raw const found as u64).unwrap(), None);
    assert_eq!(up.devices()[0].dmabuf.as_ref().map(|e| e.errno), Some(errno::ENOSYS));
    assert_eq!(up.export_dmabuf(made, 100, false).unwrap_err().errno, errno::ENOSYS);
    assert_eq!(up.flush(0).unwrap_err().errno, errno::EOPNOTSUPP);
    assert_eq!(up.flush(99).unwrap_err().errno, errno::ENODEV);
    share(up, &[up.export(&found).unwrap()], "1");
    up.free(made).unwrap();
}

fn faults() {
    let up: &'static dyn Interface = Box::leak(cuda::open(false).unwrap());
    let made = up.alloc(0, BYTES as u64).unwrap();
    let found = up.detect(made).unwrap().unwrap();
    let open = fds();
    for name in ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemGetAllocationGranularity"] {
        fault(&format!("{name}=4242"));
        let e = up.alloc(0, 100).unwrap_err();
        assert!(e.errno == errno::EIO && e.words.contains(name) && e.words.contains("4242"), "{e}");
    }
    fault("cuMemCreate=2");
    assert_eq!(up.alloc(0, 100).unwrap_err().errno, errno::ENOMEM);
    fault("cuMemExportToShareableHandle=801");
    assert_eq!(up.export(&found).unwrap_err().errno, errno::EOPNOTSUPP);
    fault("cuMemGetHandleForAddressRange=201");
    assert!(up.export_dmabuf(made, 100, false).is_err());
    // One attribute that the driver lacks does not spoil the rest.
    fault("cuPointerGetAttributes=1");
    assert_eq!(up.detect(made + 5).unwrap(), Some(found));
    fault("cuPointerGetAttributes=999");
    assert!(up.detect(made).is_err());
    for name in ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        fault("");
        let export = up.export(&found).unwrap();
        let fd = export.fd.as_ref().map(std::os::fd::AsFd::as_fd);
        let offer = Offer { how: export.how, device: export.device, handle: export.handle, fd, len: export.len };
        fault(&format!("{name}=999"));
        assert!(up.import(&offer, None).is_err());
    }
    // A stream that fails stays failed.
    fault("");
    let (bytes, mut stream) = (pattern(3), up.stream(0).unwrap());
    fault("cuStreamQuery=700,cuEventQuery=700");
    // SAFETY: the failed stream waits for its copies, so the buffers outlive them.
    unsafe { stream.post(Dir::ToDevice, made, bytes.as_ptr() as u64, BYTES) }.unwrap();
    assert_eq!(stream.done().unwrap_err().errno, errno::EFAULT);
    fault("");
    assert!(load(up, made, BYTES) == bytes && stream.done().is_err());
    drop(stream);
    assert_eq!(fds(), open, "descriptors left open");
    up.free(made).unwrap();
}
