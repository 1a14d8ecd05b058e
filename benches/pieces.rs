// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of single parts of the data path in one process: the ring, registration, and a write between two endpoints of this process.
//! `make bench` compares with other libraries.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gdrfab::fabric::{Cq, CqFormat, Domain, Endpoint, Eq, Fabric, Info, getinfo};
use gdrfab::mr::{Access, PathPolicy};
use gdrfab::mr::{Attr, Source};
use gdrfab::prov::flags;
use gdrfab::prov::op::Iov;
use std::hint::black_box;
use std::sync::Arc;

struct Side {
    cq: Arc<Cq>,
    ep: Arc<Endpoint>,
}

fn side(domain: &Arc<Domain>, info: &Info, eq: &Arc<Eq>) -> Side {
    let cq = Cq::open(domain, 1024, CqFormat::Context, false).expect("cq");
    let ep = Endpoint::open(domain, info, 0).expect("ep");
    ep.bind_cq(&cq, flags::SEND | flags::RECV).expect("bind cq");
    ep.bind_eq(eq, 0).expect("bind eq");
    ep.enable().expect("enable");
    Side { cq, ep }
}

fn attr(iov: &[Iov]) -> Attr<'_> {
    Attr {
        memory: gdrfab::mr::Memory::Host,
        source: Source::Iov(iov),
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        offset: 0,
        requested_key: 0,
        policy: PathPolicy::default(),
        rma_event: false,
    }
}

fn pieces(c: &mut Criterion) {
    let hints =
        Info { threading: gdrfab::fabric::THREAD_DOMAIN, mr_mode: flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY, ..Info::default() };
    let info = getinfo(None, None, 0, Some(&hints)).expect("shm").swap_remove(0);
    let fabric = Fabric::open(&info).expect("fabric");
    let domain = Domain::open(&fabric, &info, None).expect("domain");
    let eq = Eq::open(&fabric, false).expect("eq");
    let (a, b) = (side(&domain, &info, &eq), side(&domain, &info, &eq));
    let (to_a, to_b) = (a.ep.address().expect("address"), b.ep.address().expect("address"));
    a.ep.connect_addr(&to_b).expect("connect");
    b.ep.connect_addr(&to_a).expect("connect");
    for _ in 0..2 {
        eq.sread(5000, |_| (true, ())).expect("connected");
    }
    let len = 1 << 20;
    let memory = domain.allocate(len).expect("memory");
    // SAFETY: the domain's memory is valid until the domain is closed.
    let iov = [unsafe { Iov::new(memory, len) }];

    c.bench_function("register and close 1 MiB", |bench| {
        bench.iter(|| {
            let mr = domain.register(&attr(black_box(&iov))).expect("register");
            mr.close().expect("close");
        });
    });

    let mr = domain.register(&attr(&iov)).expect("register");
    let source = vec![1u8; len];
    let mut group = c.benchmark_group("write and its completion, direct");
    for size in [8usize, 4096, 65536] {
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(format!("{size} B"), |bench| {
            bench.iter(|| {
                let (head, none) = (a.ep.head(), std::ptr::null_mut());
                // SAFETY: the endpoint is open, the buffer outlives the write, and no other thread calls.
                unsafe { (head.ops().write)(head, source.as_ptr().cast_mut().cast(), size, none, 0, memory as u64, mr.key(), none) };
                if a.cq.read(1, |_, _| {}) == gdrfab::prov::queue::Taken::Empty {
                    // The first write needs the owner's help to find the region.
                    b.cq.read(0, |_, _| {});
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pieces);
criterion_main!(benches);
