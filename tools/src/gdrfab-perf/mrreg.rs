// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of a registration: opens and closes a region again and again, beside others that stay open. The row of each size
//! names the path: of a device the way in which it reaches the memory, else the path that the region offers to peers.

use crate::args::Options;
use crate::client::{RUN_S, WARM_UP_S, batch, warm};
use crate::conn::pin;
use crate::local::choose_cpus;
use crate::measure::{Pulse, Until, latency};
use crate::memory::Memory;
use crate::provider::ProviderTraits;
use crate::report::{About, Figures, Latency, Report, Row};
use crate::stats::{Clock, Histogram};
use gdrfab::error::Result;
use gdrfab::fabric::{Domain, Fabric, Mr, PROGRESS_AUTO, PROGRESS_MANUAL, THREAD_DOMAIN, THREAD_SAFE};
use gdrfab::mr::PathPolicy;
use gdrfab::sync::serial::Promise;
use serde_json::json;
use std::sync::Arc;

pub fn run(o: &Options, clock: Clock, report: &mut Report) -> Result<()> {
    let mut info = o.choice.discover(None, false)?;
    info.threading = if o.one_thread { THREAD_DOMAIN } else { THREAD_SAFE };
    info.progress = if o.auto { PROGRESS_AUTO } else { PROGRESS_MANUAL };
    let fabric = Fabric::open(&info)?;
    // SAFETY: one thread uses the domain.
    let domain = Domain::open(&fabric, &info, Some(unsafe { Promise::given() }))?;
    let cpu = choose_cpus(&o.cpus).first().copied();
    pin(cpu)?;
    let largest = o.sizes.iter().copied().max().unwrap_or(1);
    let memory = Memory::new(o.memory, &domain, largest)?;
    let subject = Subject { memory: &memory, domain: &domain, policy: policy(o), nic: ProviderTraits::of(&info).nic };
    let others: Vec<_> = (0..o.live).map(|_| subject.register(o.sizes[0])).collect::<Result<_>>()?;
    let provider = info.prov_name.clone().unwrap_or_default();
    let device = info.domain_name.clone().filter(|_| subject.nic);
    let mut about = About {
        lines: vec![
            ("test", format!("{}: {}", o.test.name(), o.test.help())),
            ("provider", provider.clone()),
            ("memory", o.memory.name()),
            ("live", format!("{} other regions open", o.live)),
            ("cpus", cpu.map_or("not pinned".to_string(), |c| c.to_string())),
        ],
        json: json!({
            "test": o.test.name(),
            "provider": provider,
            "memory": o.memory.name(),
            "live": o.live,
            "cpu": cpu,
            "device": device,
        }),
    };
    if let Some(device) = device {
        about.lines.insert(2, ("device", device));
    }
    report.begin(about)?;
    for size in &o.sizes {
        let row = measure(o, clock, &subject, *size, report)?;
        report.row(row)?;
    }
    for mr in &others {
        mr.close()?;
    }
    drop(memory);
    domain.check_close()?;
    domain.close();
    fabric.check_close()
}

/// The paths that the command line permits, for every provider.
fn policy(o: &Options) -> PathPolicy {
    PathPolicy { require: o.path, ..PathPolicy::default() }
}

/// The memory that is registered, and its place.
struct Subject<'a> {
    memory: &'a Memory,
    domain: &'a Arc<Domain>,
    policy: PathPolicy,
    nic: bool,
}

impl Subject<'_> {
    fn register(&self, size: usize) -> Result<Box<Mr>> {
        self.memory.register(self.domain, size, self.policy)
    }
}

fn measure(o: &Options, clock: Clock, subject: &Subject<'_>, size: usize, report: &mut Report) -> Result<Row> {
    let mut whole = subject.register(size)?;
    let paths = whole.facts()?.paths.words();
    let path = if subject.nic { paths } else { format!("offers {paths}") };
    let once = |last: &mut Box<Mr>| {
        last.close()?;
        *last = subject.register(size)?;
        Ok(())
    };
    // Pinning large memory takes long.
    let span = |seconds: f64| clock.ticks_of_us(seconds * 1e6);
    let iterations = o.iterations.unwrap_or_else(|| o.test.default_iterations(size));
    let first = match o.warm_up {
        Some(n) => Until::count(n),
        None => Until::within((iterations / 10).clamp(1, 10_000), span(WARM_UP_S)),
    };
    let warm_up = warm(&mut whole, first, once)?;
    let batch = batch(clock, warm_up);
    let until = match (o.seconds, o.iterations) {
        (Some(s), _) => Until::time(span(s)),
        (_, Some(n)) => Until::count(n),
        _ => Until::within(iterations, span(RUN_S)),
    };
    let bar = report.bar();
    let beat = |_: &mut Box<Mr>, share: f64| {
        bar.draw(&format!("{size} bytes"), share);
        Ok(())
    };
    let mut samples = Histogram::new();
    let mut pulse = Pulse { every: clock.ticks_of_us(100_000.0), beat };
    let iterations = latency(&mut whole, until, batch, &mut samples, once, &mut pulse)?;
    whole.close()?;
    let figures = Figures::Latency(Latency::of(&samples, clock, batch));
    Ok(Row { path: Some(path), ..Row::new(size, iterations, batch, figures) })
}
