// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a registration costs: open and close a region over and over, beside others that stay open.

use crate::args::Options;
use crate::client::{batch, warm};
use crate::conn::pin;
use crate::json::Json;
use crate::local::choose_cpus;
use crate::measure::{Pulse, Until, latency};
use crate::memory::Memory;
use crate::report::{About, Figures, Latency, Report, Row};
use crate::stats::{Clock, Histogram};
use gdrfab::error::Result;
use gdrfab::fabric::{Domain, Fabric, Mr, PROGRESS_AUTO, PROGRESS_MANUAL, THREAD_DOMAIN, THREAD_SAFE};
use gdrfab::mr::PathPolicy;
use std::sync::Arc;

pub fn run(o: &Options, clock: Clock, report: &mut Report) -> Result<()> {
    let mut info = o.choice.discover(None, false)?;
    info.threading = if o.one_thread { THREAD_DOMAIN } else { THREAD_SAFE };
    info.progress = if o.auto { PROGRESS_AUTO } else { PROGRESS_MANUAL };
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    let cpu = choose_cpus(&o.cpus).first().copied();
    pin(cpu)?;
    let largest = o.sizes.iter().copied().max().unwrap_or(1);
    let memory = Memory::new(o.memory, &domain, largest)?;
    let others: Vec<_> = (0..o.live).map(|_| memory.register(&domain, o.sizes[0], PathPolicy::default())).collect::<Result<_>>()?;
    let provider = info.prov_name.clone().unwrap_or_default();
    report.begin(About {
        lines: vec![
            ("test", format!("{}: {}", o.test.name(), o.test.help())),
            ("provider", provider.clone()),
            ("memory", o.memory.name()),
            ("live", format!("{} other regions open", o.live)),
            ("cpus", cpu.map_or("not pinned".to_string(), |c| c.to_string())),
        ],
        json: vec![
            ("test", Json::str(o.test.name())),
            ("provider", Json::Str(provider)),
            ("memory", Json::str(o.memory.name())),
            ("live", Json::Int(o.live as u64)),
            ("cpu", cpu.map_or(Json::Null, |c| Json::Int(c as u64))),
        ],
    })?;
    for size in &o.sizes {
        let row = measure(o, clock, &memory, &domain, *size, report)?;
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

fn measure(o: &Options, clock: Clock, memory: &Memory, domain: &Arc<Domain>, size: usize, report: &mut Report) -> Result<Row> {
    let mut whole = memory.register(domain, size, PathPolicy::default())?;
    let paths = whole.facts()?.paths;
    let once = |last: &mut Box<Mr>| {
        last.close()?;
        *last = memory.register(domain, size, PathPolicy::default())?;
        Ok(())
    };
    let iterations = o.iterations.unwrap_or_else(|| o.test.default_iterations(size));
    let warm_up = warm(&mut whole, Until::count(o.warm_up.unwrap_or((iterations / 10).clamp(1, 10_000))), once)?;
    let batch = batch(clock, warm_up);
    let until = match o.seconds {
        Some(s) => Until::time(clock.ticks_of_us(s * 1e6)),
        None => Until::count(iterations),
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
    Ok(Row { size, iterations, batch, figures, path: Some(format!("offers {}", paths.words())), helped: 0.0, verified: false })
}
