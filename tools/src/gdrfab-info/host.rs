// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts of the host that decide which paths a provider has here.

use gdrfab::sys::process;
use rustix::process::{Resource, getrlimit};

pub struct Fact {
    pub name: &'static str,
    pub value: String,
    /// The fact also stands in the one line about the host.
    pub brief: bool,
}

fn setting(path: &str) -> String {
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().to_string(),
        Err(_) => "this kernel has no such setting".to_string(),
    }
}

fn limit(of: Resource) -> String {
    getrlimit(of).current.map_or("unlimited".to_string(), |n| n.to_string())
}

fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") { "AVX-512, non-temporal stores" } else { "SSE2, non-temporal stores" }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        "the C library's memcpy"
    }
}

/// All facts, the most important first.
pub fn facts() -> Vec<Fact> {
    let name = rustix::system::uname();
    let word = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let mut facts = Vec::new();
    let mut fact = |name, brief, value| facts.push(Fact { name, value, brief });
    fact("host", true, word(name.nodename()));
    fact("kernel", true, format!("{} {}", word(name.sysname()), word(name.release())));
    fact("machine", true, word(name.machine()));
    fact("cpus", false, format!("{cpus} usable by this process"));
    fact("copies with", false, instructions().to_string());
    fact("page size", false, format!("{} bytes", rustix::param::page_size()));
    let boot = process::host_id().unwrap_or(process::HOST_UNKNOWN);
    fact("boot", false, format!("{boot:08x}: only processes with the same number share memory"));
    fact("user", false, format!("{}: shm connects processes of one user", process::euid()));
    fact("open files", false, limit(Resource::Nofile));
    fact("locked memory", false, limit(Resource::Memlock));
    fact("ptrace_scope", false, setting("/proc/sys/kernel/yama/ptrace_scope"));
    fact("shmem huge pages", false, setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
    facts
}
