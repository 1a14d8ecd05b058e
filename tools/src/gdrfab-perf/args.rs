// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of gdrfab-perf: its options, their defaults, and the rules between them.

use crate::action;
use crate::blocks::{self, Blocks};
use crate::bounds::{self, Bounds};
use crate::cli::{Args, Word};
use crate::compare::{self, Compare};
use crate::drive::{self, Drive};
use crate::memory::Kind;
use crate::output::{self, Format, Output};
use crate::plot::{self, Plot};
use crate::provider::Choice;
use crate::tests::{Test, sweep};
use crate::values::{seconds, size};
use crate::wire::Plan;
use gdrfab::mr::Paths;

pub const DEFAULT_NAME: &str = "gdrfab-perf";

fn help() -> String {
    let tests: String = Test::ALL.iter().map(|t| format!("  {:<17} {}\n", t.name(), t.help())).collect();
    let drive = format!("{}{}", drive::HELP, blocks::HELP);
    format!(
        "\
gdrfab-perf: how fast gdrfab moves memory between two processes

Usage: gdrfab-perf TEST [options]           the server: waits for a client
       gdrfab-perf TEST [options] SERVER    the client: SERVER is a name or shm://name, or of
                                            another host tcp://HOST:PORT or verbs://HOST:PORT
                                            (with -p tcp or -p verbs HOST[:PORT])
       gdrfab-perf TEST [options] --local   both, each on a CPU of its own

{tests}
  -s, --size SIZE       bytes (K, M, G: powers of 1024); A:B sweeps in powers of two
  -a, --all             the sizes 1:64M
  -n, --iters N         iterations for each size
  -D, --duration SEC    run each size for so long instead
  -w, --warm-up N       iterations before those that count (a tenth)
  -d, --depth N         (or -t) operations in flight, for bandwidth and rate (64; lists: 1)
  -Q, --cq-mod N        one completion for N operations, for bandwidth and rate (1 for more
                        than 8 KiB, a quarter of the depth else)
{drive}      --mem KIND        memory of both sides: host (gdrfab_mem_alloc, the default), malloc,
                        memfd, hugepages (2 MiB), udmabuf, dma-heap, or a device's: cuda:N,
                        rocr:N (or rocm), ze:N, neuron:N, synapseai:N (or gaudi);
                        cuda:N,HOW is plain (cuMemAlloc), pool, vmm (gdrfab_mem_alloc),
                        vmm2 (two segments) or managed; a device's with ,dmabuf or ,pcie at
                        the end is registered as a dma-buf of the program's own (over RDMA)
      --local-mem KIND  (or --memory) of the client
      --remote-mem KIND (or --remote-memory) of the server (as --local-mem)
      --path PATH       direct, ipc, cma or staged: nothing else will do; of messages,
                        it concerns those too long for the ring. Over tcp socket or
                        staged; over RDMA nic, dmabuf, peer-mem or staged: how both
                        sides register their memory
      --verify          check what arrived, byte for byte
      --threading MODE  safe or domain (one thread at a time: the default)
      --auto            a thread of the library makes progress
      --no-coop         the target's core carries no part of large copies
      --sleep           the server sleeps instead of polling while it is a mere target
      --live N          mr-reg: so many other regions are open meanwhile
      --deadline MS     limit for connecting, for every operation, and for every wait
                        for the peer (10000, and none for operations)
      --cpus A,B        the client's CPU and the server's
      --name NAME       where the server listens ({DEFAULT_NAME}); over tcp and RDMA HOST or
                        HOST:PORT
      --port N          the same over tcp, on 127.0.0.1 unless GDRFAB_TCP_IFACE says otherwise,
                        and over RDMA, on the device's own address (7471; 0: any)
      --device NAME     this RDMA device (mlx5_0)
  -k, --keep            the server serves one client after another
{bounds}  -p, --provider PROV   only this provider: shm, tcp or verbs
      --local           start a server for this run only
  -V, --version         the version
  -h, --help            this text
{results}
The client's options rule, within the server's --max-memory and --max-time; of its own a server
takes those, --name, --port, --device, --cpus, --deadline (for connecting), -k, -p, --json, --csv.
With device memory write-lat is one write at a time, from post to delivery, because no CPU
can poll there. MB are 10^6 bytes. t_typical is the median. Exit status: 0, 1 if the run failed, 2 for a
wrong command line.
",
        results = output::HELP,
        bounds = bounds::HELP
    )
}

#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    Server,
    Client(String),
    Local,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub test: Test,
    pub role: Role,
    pub name: Option<String>,
    pub port: Option<u16>,
    pub sizes: Vec<usize>,
    pub iterations: Option<u64>,
    pub seconds: Option<f64>,
    pub warm_up: Option<u64>,
    pub depth: usize,
    /// The number of operations for one completion.
    pub cq_mod: Option<usize>,
    pub memory: Kind,
    pub remote_memory: Kind,
    pub path: Paths,
    pub verify: bool,
    pub one_thread: bool,
    pub auto: bool,
    pub coop: bool,
    pub sleep: bool,
    pub live: usize,
    pub deadline_ms: Option<u64>,
    pub cpus: Vec<usize>,
    pub keep: bool,
    pub choice: Choice,
    pub output: Output,
    pub drive: Drive,
    pub blocks: Blocks,
    /// Options of a server.
    pub bounds: Bounds,
    /// The process that started this server for its own run; the server ends with it.
    pub parent: Option<i32>,
}

impl Options {
    /// The part of the options that both sides must agree on.
    pub fn plan(&self, yields: bool) -> Plan {
        Plan {
            test: self.test,
            max_size: self.sizes.iter().copied().max().unwrap_or(1),
            depth: self.depth,
            memory: self.remote_memory,
            path: self.path,
            deadline_ms: self.deadline_ms.unwrap_or(0),
            // A process that polls the last byte must not see it before the others, but a helping target copies from the end.
            coop: self.coop && self.test != Test::WriteLat,
            verify: self.verify,
            one_thread: self.one_thread,
            auto: self.auto,
            sleep: self.sleep,
            yields,
            one_way: self.one_way(),
            both: self.drive.both,
            endpoints: self.drive.endpoints,
            list: self.drive.list,
            inline: self.drive.inline,
            rdm: self.choice.rdm,
            tagged: self.drive.tagged,
        }
    }

    /// True if the latency of writes is measured by one write at a time, because one side's memory cannot be polled.
    pub fn one_way(&self) -> bool {
        self.test == Test::WriteLat && (self.memory.is_device() || self.remote_memory.is_device())
    }

    /// The number of operations for one completion: large operations have one each; of small ones a few for each window are
    /// enough.
    pub fn completion_every(&self, size: usize) -> usize {
        let quarter = if size > 8192 { 1 } else { (self.depth / 4).max(1) };
        if self.test.is_list() {
            return 1;
        }
        // A list has at most one completion.
        self.cq_mod.unwrap_or((quarter / self.drive.list).max(1) * self.drive.list)
    }
}

pub enum Parsed {
    Run(Box<Options>),
    Plot(Plot),
    Compare(Compare),
    Help(String),
    Version,
}

/// The largest depth: the number of operations that an endpoint can have outstanding.
const MAX_DEPTH: usize = 1024;
fn sizes(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("--size {text}: a size such as 64, 4K or 1M, or a sweep such as 8:4M, is expected");
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    match (size(low), size(high)) {
        (Some(low), Some(high)) if low <= high => Ok(sweep(low, high)),
        _ => Err(wrong()),
    }
}

fn memory(option: &str, value: &str) -> Result<Kind, String> {
    Kind::parse(value).ok_or_else(|| format!("{option} {value}: {} is expected", Kind::EXPECTED))
}

fn cpus(value: &str) -> Result<Vec<usize>, String> {
    let list: Result<Vec<usize>, _> = value.split(',').map(str::parse).collect();
    list.ok()
        .filter(|l| l.len() <= 2 && l.iter().all(|c| *c < 1024))
        .ok_or_else(|| format!("--cpus {value}: one or two CPU numbers are expected"))
}

pub fn parse(mut args: Args) -> Result<Parsed, String> {
    match args.command(&["plot", "compare"]) {
        Some("plot") => return Ok(plot::parse(args)?.map_or(Parsed::Help(plot::HELP.into()), Parsed::Plot)),
        Some(_) => return Ok(compare::parse(args)?.map_or(Parsed::Help(compare::HELP.into()), Parsed::Compare)),
        None => {}
    }
    let mut operands = Vec::new();
    let (mut both_memory, mut local_memory, mut remote_memory) = (None, None, None);
    let mut local = false;
    let (mut chosen, mut depth) = (None, None);
    let mut o = Options {
        test: Test::WriteLat,
        role: Role::Server,
        name: None,
        port: None,
        sizes: Vec::new(),
        iterations: None,
        seconds: None,
        warm_up: None,
        depth: 64,
        cq_mod: None,
        memory: Kind::Alloc,
        remote_memory: Kind::Alloc,
        path: Paths::empty(),
        verify: false,
        one_thread: true,
        auto: false,
        coop: true,
        sleep: false,
        live: 0,
        deadline_ms: None,
        cpus: Vec::new(),
        keep: false,
        choice: Choice::default(),
        output: Output::default(),
        drive: Drive::default(),
        blocks: Blocks::default(),
        bounds: Bounds::default(),
        parent: None,
    };
    while let Some(word) = args.next()? {
        let option = match word {
            Word::Plain(word) => {
                operands.push(word);
                continue;
            }
            Word::Option(option) => option,
        };
        if o.drive.take(&option, &mut args)? || o.blocks.take(&option, &mut args)? || o.bounds.take(&option, &mut args)? {
            continue;
        }
        match option.as_str() {
            "-s" | "--size" => chosen = Some(sizes(&args.value(&option)?)?),
            "-a" | "--all" => chosen = Some(sweep(1, 64 << 20)),
            "-n" | "--iters" => o.iterations = Some(args.number(&option, "a number from 1 up").and_then(at_least_one(&option))?),
            "-D" | "--duration" => o.seconds = Some(seconds(&mut args, &option)?),
            "-w" | "--warm-up" => o.warm_up = Some(args.number(&option, "a number")?),
            "-d" | "-t" | "--depth" => depth = Some(args.number(&option, "a number")?),
            "-Q" | "--cq-mod" => o.cq_mod = Some(args.number(&option, "a number")?),
            "--mem" => both_memory = Some(memory(&option, &args.value(&option)?)?),
            "--memory" | "--local-mem" => local_memory = Some(memory(&option, &args.value(&option)?)?),
            "--remote-memory" | "--remote-mem" => remote_memory = Some(memory(&option, &args.value(&option)?)?),
            "--path" => o.path = path(&args.value(&option)?)?,
            "--verify" => o.verify = true,
            "--threading" => o.one_thread = threading(&args.value(&option)?)?,
            "--auto" => o.auto = true,
            "--no-coop" => o.coop = false,
            "--sleep" => o.sleep = true,
            "--live" => o.live = args.number(&option, "a number")?,
            "--deadline" => o.deadline_ms = Some(args.number(&option, "milliseconds").and_then(at_least_one(&option))?),
            "--cpus" => o.cpus = cpus(&args.value(&option)?)?,
            "--name" => o.name = Some(args.value(&option)?),
            "--port" => o.port = Some(args.number(&option, "a port")?),
            "--device" => o.choice.device = Some(args.value(&option)?),
            "-k" | "--keep" => o.keep = true,
            "-p" | "--provider" => o.choice.provider = Some(args.value(&option)?),
            "--local" => local = true,
            "--json" => o.output.choose(Format::Json)?,
            "--csv" => o.output.choose(Format::Csv)?,
            "--out" => o.output.keep(args.value(&option)?)?,
            "--cpu-util" => o.output.cpu = true,
            "--parent" => o.parent = Some(args.number(&option, "a process")?),
            "-V" | "--version" => return Ok(Parsed::Version),
            "-h" | "--help" => return Ok(Parsed::Help(help())),
            _ => return Err(format!("{option}: there is no such option")),
        }
    }
    let mut operands = operands.into_iter();
    let test = operands.next().ok_or("which test?")?;
    o.test = Test::parse(&test).ok_or_else(|| format!("{test}: there is no such test"))?;
    o.role = match (operands.next(), local) {
        (Some(_), true) => return Err("--local and SERVER exclude each other".into()),
        (Some(server), false) => Role::Client(server),
        (None, true) => Role::Local,
        (None, false) => Role::Server,
    };
    if let Some(more) = operands.next() {
        return Err(format!("{more:?}: what is this after SERVER?"));
    }
    if o.test == Test::MrReg && matches!(o.role, Role::Client(_)) {
        return Err("mr-reg needs no SERVER".into());
    }
    if let (Some((path, _)), Role::Server) = (&o.output.file, &o.role)
        && o.test != Test::MrReg
    {
        return Err(format!("--out {path}: a server has no results; the client keeps them"));
    }
    if o.iterations.is_some() && o.seconds.is_some() {
        return Err("--iters and --duration exclude each other".into());
    }
    o.depth = depth.unwrap_or(if o.test.is_list() { 1 } else { 64 });
    if !(1..=MAX_DEPTH).contains(&o.depth) {
        return Err(format!("--depth {}: 1 to {MAX_DEPTH} is expected", o.depth));
    }
    if let Some(n) = o.cq_mod.filter(|n| !(1..=o.depth).contains(n)) {
        return Err(format!("--cq-mod {n}: 1 to the depth, {}, is expected", o.depth));
    }
    if o.test.is_list() && o.cq_mod.is_some_and(|n| n != 1) {
        return Err("--cq-mod: each list of blocks has its own completion".into());
    }
    o.drive.check(o.test, o.depth, o.cq_mod)?;
    o.choice.rdm = o.drive.rdm;
    o.bounds.meeting_ms = o.deadline_ms.unwrap_or(o.bounds.meeting_ms);
    let (low, high) = o.test.default_sizes();
    o.sizes = chosen.unwrap_or_else(|| sweep(low, high));
    if o.test.action().is_some() && o.sizes != [action::SIZE] {
        return Err(format!("--size: {} works on {} bytes", o.test.name(), action::SIZE));
    }
    o.blocks.apply(o.test, o.drive.both, o.drive.list, &mut o.sizes)?;
    o.memory = local_memory.or(both_memory).unwrap_or(Kind::Alloc);
    o.remote_memory = remote_memory.or(both_memory).unwrap_or(o.memory);
    if o.test.action().is_some() && o.memory.is_device() {
        return Err(format!("--mem {}: operands of atomic operations lie in host memory", o.memory.name()));
    }
    Ok(Parsed::Run(Box::new(o)))
}

fn at_least_one(option: &str) -> impl Fn(u64) -> Result<u64, String> {
    move |n| if n > 0 { Ok(n) } else { Err(format!("{option} 0: a number from 1 up is expected")) }
}

fn path(word: &str) -> Result<Paths, String> {
    let bit =
        Paths::WORDS.iter().position(|w| *w == word).ok_or_else(|| format!("--path {word}: {} is expected", Paths::WORDS.join(", ")))?;
    Ok(Paths::from_bits_truncate(1 << bit))
}

fn threading(word: &str) -> Result<bool, String> {
    match word {
        "domain" => Ok(true),
        "safe" => Ok(false),
        _ => Err(format!("--threading {word}: safe or domain is expected")),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn run(line: &str) -> Result<Options, String> {
        match parse(Args::new(line.split(' ').map(String::from)))? {
            Parsed::Run(o) => Ok(*o),
            _ => Err("help".into()),
        }
    }

    #[test]
    fn options_are_understood_and_mistakes_named() {
        let o = run("write-bw -s 4K:16K -n10 --memory malloc --path cma --cpus 0,1 shm://x").unwrap();
        assert_eq!((o.sizes, o.iterations, o.role), (vec![4096, 8192, 16384], Some(10), Role::Client("shm://x".into())));
        let of = |line| run(line).unwrap().completion_every(8);
        assert_eq!((of("write-bw -l 10"), of("write-bw -l 64"), of("write-bw -l 4 -Q 32")), (10, 64, 32));
        let rdm = run("send-lat --ep rdm --tagged").unwrap();
        assert!(rdm.drive.addresses && rdm.plan(false).rdm && rdm.plan(false).tagged);
        assert_eq!((o.remote_memory, o.path, o.cpus), (Kind::Malloc, Paths::CMA, vec![0, 1]));
        for (line, word) in [
            ("fly", "fly"),
            ("write-lat -s 8:4", "--size"),
            ("write-lat --path air", "--path"),
            ("write-lat --local-mem tape", "--local-mem"),
            ("write-lat -n 0", "-n"),
            ("write-lat -n 1 -D 1", "exclude"),
            ("write-lat --local x", "exclude"),
            ("write-lat -d 0", "--depth"),
            ("write-bw -d 8 -Q 9", "--cq-mod"),
            ("write-bw --port 70000", "--port"),
            ("write-lat -q 2", "one operation"),
            ("read-lat -b", "--bidirectional"),
            ("write-bw -q 65", "--endpoints"),
            ("write-bw -l 65", "--post-list"),
            ("write-bw -l 4 -Q 6", "multiple"),
            ("write-bw -I 5000", "--inline"),
            ("write-bw --burst 4", "--rate-limit"),
            ("write-bw --rate-limit 0", "--rate-limit"),
            ("write-bw --rate-limit 1 --rate-unit x", "--rate-unit"),
            ("write-bw --rate-limit 1 -l 4 --burst 2", "--burst"),
            ("write-bw --connect pigeon", "--connect"),
            ("write-bw --control-port 5", "--control-port"),
            ("write-bw --ep dgram", "--ep"),
            ("list-read --ep rdm", "--ep rdm"),
            ("send-lat --tagged", "--tagged"),
            ("write-lat --ep rdm --tagged", "--tagged"),
            ("write-lat --frob", "--frob"),
            ("write-lat --json --csv x", "exclude"),
            ("write-lat --out results.txt x", "--out"),
            ("write-lat --out results.csv", "client"),
            ("mr-reg x", "mr-reg"),
            ("write-lat a b", "\"b\""),
            ("add-lat -s 16", "8 bytes"),
            ("fetch-add-lat --mem cuda:0", "host memory"),
            ("fetch-add-rate --bidirectional", "--bidirectional"),
        ] {
            assert!(run(line).unwrap_err().contains(word), "{line}");
        }
    }
}
