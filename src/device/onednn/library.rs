//! Finding libdnnl.so.3, loading it once, and what can be asked of it before any work is done: its version,
//! its threading runtime, the instruction set it will use.

use std::env;
use std::ffi::{OsStr, c_int, c_uint};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::sys::{self, Functions};
use crate::device::loaded::file_of;
use crate::error::{Error, Result};
use crate::host;

const SONAME: &str = "libdnnl.so.3";
const REMEDY: &str = "To get it: run `make deps`, or load your site's oneDNN module, or `pip install \
                      onednn-cpu-gomp` in a virtual environment; then set DNNL_ROOT to the directory that \
                      holds lib/libdnnl.so.3 (for pip, the virtual environment). --device reference runs \
                      without oneDNN, slowly.";

/// The loaded library.
pub struct Library {
    pub functions: Functions,
    found: OnednnInfo,
    set_threads: Option<unsafe extern "C" fn(c_int)>,
    // The functions live as long as this does.
    _handle: libloading::Library,
}

/// What was found, for `dltrain info` and the record.
#[derive(Debug, Clone)]
pub struct OnednnInfo {
    /// The file that it was loaded from.
    pub path: PathBuf,
    /// "3.2.0"
    pub version: String,
    /// The largest instruction set of oneDNN's that this CPU has.
    pub isa: Isa,
    /// What it runs its threads on: "gomp", "libomp", "seq", "threadpool".
    pub runtime: &'static str,
}

/// An instruction set as oneDNN names them (`dnnl_cpu_isa_t`): a set of bits, one for each extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(pub u32);

impl Isa {
    /// The largest instruction set that both have. Ranks on unlike CPUs use this one, so that they choose
    /// the same layouts.
    pub fn common(self, other: Isa) -> Isa {
        Isa(self.0 & other.0)
    }

    /// Whether it multiplies bf16.
    pub fn has_bf16(self) -> bool {
        self.0 & 0x80 != 0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0x0 => f.pad("default"),
            0x1 => f.pad("sse41"),
            0x3 => f.pad("avx"),
            0x7 => f.pad("avx2"),
            0xf => f.pad("avx2_vnni"),
            0x1f => f.pad("avx2_vnni_2"),
            0x27 => f.pad("avx512_core"),
            0x67 => f.pad("avx512_core_vnni"),
            0xe7 => f.pad("avx512_core_bf16"),
            0x1ef => f.pad("avx512_core_fp16"),
            0xfef => f.pad("avx512_core_amx"),
            0x1fef => f.pad("avx512_core_amx_fp16"),
            other => f.pad(&format!("isa {other:#x}")),
        }
    }
}

/// The process's oneDNN, loaded by the first call.
///
/// # Errors
/// `Environment`: where it was looked for, why each place would not do, and the remedy.
pub fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
    LIBRARY.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// Looks for oneDNN and says what there is.
///
/// # Errors
/// As for `library`.
pub fn probe() -> Result<OnednnInfo> {
    Ok(library()?.found.clone())
}

/// The largest instruction set of oneDNN's that this CPU has.
///
/// # Errors
/// As for `library`.
pub fn isa() -> Result<Isa> {
    Ok(library()?.found.isa)
}

/// Restricts oneDNN to an instruction set, for ranks on unlike CPUs to agree on one. To be called before the
/// first `Cpu` is made. A limit that the user set in the environment stays.
///
/// # Errors
/// `Foreign` when a `Cpu` was made already, or oneDNN does not know `isa`.
pub fn limit_isa(isa: Isa) -> Result<()> {
    let library = library()?;
    let limited_by_user =
        ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"].iter().any(|name| env::var_os(name).is_some());
    if library.found.isa == isa || limited_by_user {
        return Ok(());
    }
    // SAFETY: any integer may be passed; an unknown one is refused.
    let status = unsafe { (library.functions.dnnl_set_max_cpu_isa)(isa.0 as c_int) };
    check(status, "dnnl_set_max_cpu_isa").map_err(|e| e.context(format!("limiting oneDNN to {isa}")))
}

/// What this CPU has, asked of the CPU: asking oneDNN (`dnnl_get_effective_cpu_isa`) fixes its choice, and no
/// limit can be set any more. The sets, and what they consist of, are those of `dnnl_cpu_isa_t`; AMX is left out:
/// it is used where all ranks have the same of the sets here, and bf16 has use for it.
fn cpu_isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let avx2_vnni = has!("avx2") && has!("avxvnni");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
        let vnni = avx512 && has!("avx512vnni");
        let bf16 = vnni && has!("avx512bf16");
        let sets = [
            (bf16 && has!("avx512fp16") && has!("avxvnni"), 0x1ef),
            (bf16, 0xe7),
            (vnni, 0x67),
            (avx512, 0x27),
            (avx2_vnni && has!("avxvnniint8") && has!("avxneconvert"), 0x1f),
            (avx2_vnni, 0xf),
            (has!("avx2"), 0x7),
            (has!("avx"), 0x3),
            (has!("sse4.1"), 0x1),
        ];
        if let Some((_, bits)) = sets.into_iter().find(|(present, _)| *present) {
            return Isa(bits);
        }
    }
    Isa(0)
}

/// The error of a failed call; nothing for a successful one.
pub fn check(status: sys::Status, call: &str) -> Result<()> {
    match status {
        sys::SUCCESS => Ok(()),
        _ => Err(Error::foreign("oneDNN", call, status.into(), sys::status_text(status))),
    }
}

impl Library {
    pub fn found(&self) -> &OnednnInfo {
        &self.found
    }

    /// Whether this build runs its work on several threads at all.
    pub fn threaded(&self) -> bool {
        self.set_threads.is_some()
    }

    /// How many threads the primitives that this thread compiles and runs from now on use.
    pub fn set_threads(&self, threads: usize) {
        if let Some(set) = self.set_threads {
            // SAFETY: omp_set_num_threads takes any positive integer.
            unsafe { set(threads.clamp(1, 4096) as c_int) }
        }
    }

    /// The instruction set in use, limits included. From now on it cannot be limited.
    pub fn isa(&self) -> Isa {
        // SAFETY: takes nothing and may be called at any time.
        Isa(unsafe { (self.functions.dnnl_get_effective_cpu_isa)() } as u32)
    }
}

/// Lets go of the kernels that oneDNN keeps of plans that are no more, and gives free memory back to the system.
pub fn forget_kernels(library: &Library) -> Result<()> {
    let of = &library.functions;
    let mut capacity = 0;
    // SAFETY: the first writes to an integer of ours; the second drops what nobody holds any more.
    unsafe {
        check((of.dnnl_get_primitive_cache_capacity)(&mut capacity), "dnnl_get_primitive_cache_capacity")?;
        check((of.dnnl_set_primitive_cache_capacity)(0), "dnnl_set_primitive_cache_capacity")?;
        check((of.dnnl_set_primitive_cache_capacity)(capacity), "dnnl_set_primitive_cache_capacity")?;
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only what the allocator has free.
    unsafe {
        libc::malloc_trim(0);
    }
    Ok(())
}

fn find() -> Result<Library> {
    wait_briefly();
    search(&places())
}

/// Tries each place in order; the first library that can be used wins.
fn search(places: &[PathBuf]) -> Result<Library> {
    let mut refused = Vec::new();
    for place in places {
        // The loader's own search is the one place that is not a file to look for first.
        if place.is_absolute() && !place.exists() {
            refused.push(format!("{}: no such file", place.display()));
            continue;
        }
        match load(place) {
            Ok(library) => return Ok(library),
            Err(reason) => refused.push(format!("{}: {reason}", place.display())),
        }
    }
    if env::var_os("DNNL_ROOT").is_none() && loads(OsStr::new("libdnnl.so.2")) {
        refused.push("libdnnl.so.2: this is oneDNN 2.x; dltrain needs 3.x".to_string());
    }
    Err(Error::environment(format!(
        "oneDNN 3.x ({SONAME}) is needed for --device cpu and was not found. Looked at:\n  {}\n{REMEDY}",
        refused.join("\n  ")
    )))
}

/// Where to look. A DNNL_ROOT that is set is the user's word: nothing else is tried then.
fn places() -> Vec<PathBuf> {
    if let Some(root) = env::var_os("DNNL_ROOT").filter(|root| !root.is_empty()) {
        let root = std::path::absolute(&root).unwrap_or_else(|_| root.into());
        return vec![root.join("lib").join(SONAME), root.join("lib64").join(SONAME)];
    }
    let mut places = Vec::new();
    if let Some(directory) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(directory.join(SONAME));
        if let Some(prefix) = directory.parent() {
            places.push(prefix.join("lib").join(SONAME));
        }
    }
    places.push(PathBuf::from(SONAME));
    places
}

fn loads(name: &OsStr) -> bool {
    // SAFETY: oneDNN's initialisers touch only its own data.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// Loads one library and makes sure that it can be used; the reason otherwise.
fn load(path: &Path) -> std::result::Result<Library, String> {
    // SAFETY: the initialisers of oneDNN and of its OpenMP runtime touch only their own data.
    let handle = unsafe { libloading::Library::new(path) }.map_err(|e| {
        let reason = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        if reason.contains("libsycl") { format!("{SYCL} ({reason})") } else { reason }
    })?;
    // SAFETY: `dnnl_version` has had this signature since 1.0 and returns a pointer to static data.
    let version = unsafe {
        let version: libloading::Symbol<unsafe extern "C" fn() -> *const sys::Version> =
            handle.get(b"dnnl_version\0").map_err(|_| "not oneDNN: it has no dnnl_version".to_string())?;
        &*version()
    };
    let text = format!("{}.{}.{}", version.major, version.minor, version.patch);
    if version.major != 3 {
        return Err(format!("this is oneDNN {text}; dltrain needs 3.x"));
    }
    let runtime = runtime(&handle, version.cpu_runtime)?;
    // SAFETY: the library is oneDNN 3.x and lives in the same struct as the table.
    let functions = unsafe { Functions::load(&handle) }
        .map_err(|name| format!("this oneDNN {text} has no {name}: an incomplete build"))?;
    // SAFETY: the OpenMP standard fixes the signature. Looked up through oneDNN's handle it is that of the
    // very OpenMP runtime that oneDNN uses.
    let set_threads = unsafe { handle.get(b"omp_set_num_threads\0") }.ok().map(|symbol| *symbol);
    let set_threads = set_threads.filter(|_| version.cpu_runtime == sys::RUNTIME_OMP);
    let found = OnednnInfo {
        path: file_of(functions.dnnl_get_effective_cpu_isa as *const ()).unwrap_or_else(|| path.into()),
        version: text,
        isa: cpu_isa(),
        runtime,
    };
    Ok(Library { functions, found, set_threads, _handle: handle })
}

const SYCL: &str = "this is the SYCL build of oneDNN, which cannot work on plain host memory; use a CPU build \
                    (PyPI's onednn-cpu-gomp)";

/// The threading runtime's name, or why it will not do.
fn runtime(handle: &libloading::Library, runtime: c_uint) -> std::result::Result<&'static str, String> {
    // SAFETY: the symbol's address is only compared with nothing.
    let has = |name: &[u8]| unsafe { handle.get::<*const ()>(name) }.is_ok();
    match runtime {
        // LLVM's and Intel's runtimes export GOMP's names too, so ask for their own first.
        sys::RUNTIME_OMP if has(b"kmp_set_blocktime\0") => Ok("libomp"),
        sys::RUNTIME_OMP => Ok("gomp"),
        sys::RUNTIME_SEQ => Ok("seq"),
        sys::RUNTIME_THREADPOOL => Ok("threadpool"),
        sys::RUNTIME_SYCL => Err(SYCL.to_string()),
        sys::RUNTIME_TBB => Err("this oneDNN was built for TBB, whose threads dltrain cannot set; use an \
                                 OpenMP build (PyPI's onednn-cpu-gomp)"
            .to_string()),
        other => Err(format!("this oneDNN was built for an unknown CPU runtime ({other})")),
    }
}

/// Makes OpenMP's threads sleep soon when they wait: by default they spin for milliseconds, and where ranks share
/// cores one rank's waiting threads then take the time of another's working ones (measured: a tenfold to
/// hundredfold slowdown). A thousand turns, some ten microseconds, bridge the gap between two kernels, which
/// sleeping at once does not (measured on small models: 1.4 to 1.8 times as fast), and cost nobody else anything.
/// Where no other thread wants the cores they wait through our own work between two kernels as well (measured on
/// resnet101: 5 % faster, in one hour 15). OpenMP reads the variables when it is loaded, so there is no later way. What
/// the user set stays, but for what would bind the threads of ranks with the same cores to the first of these.
fn wait_briefly() {
    if host::has_shared_cores() {
        // SAFETY: as below.
        host::THREAD_BINDINGS.iter().for_each(|name| unsafe { env::remove_var(name) });
    }
    let turns = if host::has_own_cores() { "20000" } else { "1000" };
    let ours = [("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", turns)];
    if ours.iter().map(|(name, _)| *name).chain(["KMP_BLOCKTIME"]).all(|name| env::var_os(name).is_none()) {
        for (name, value) in ours {
            // SAFETY: other threads of this process at this point are the MPI library's and the test harness's,
            // which do not read the environment through libc while a device is being set up; Rust's own readers
            // take std's lock.
            unsafe { env::set_var(name, value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_isa_of_unlike_cpus_is_one_that_both_have() {
        let common = |a: u32, b: u32| Isa(a).common(Isa(b)).to_string();
        assert_eq!(common(0xe7, 0x67), "avx512_core_vnni");
        // Neither of these two contains the other.
        assert_eq!(common(0x1f, 0x27), "avx2");
    }

    #[test]
    fn a_file_that_is_not_onednn_is_refused_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(SONAME);
        std::fs::write(&file, b"not a library").unwrap();
        assert!(!load(&file).err().unwrap().is_empty());
        let reason = load(Path::new("libc.so.6")).err().unwrap();
        assert!(reason.contains("not oneDNN"), "{reason}");
    }

    #[test]
    fn a_missing_library_is_one_message_with_every_place_and_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let (missing, broken) = (directory.path().join("lib").join(SONAME), directory.path().join(SONAME));
        std::fs::write(&broken, b"not a library").unwrap();
        let error = search(&[missing.clone(), broken.clone()]).err().unwrap();
        assert_eq!(error.kind, crate::error::ErrorKind::Environment);
        for word in
            [missing.to_str().unwrap(), broken.to_str().unwrap(), "no such file", "make deps", "DNNL_ROOT"]
        {
            assert!(error.message.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn what_is_loaded_can_be_described() {
        let found = probe().unwrap();
        assert!(found.version.starts_with("3."), "{}", found.version);
        assert!(found.path.is_absolute(), "{}", found.path.display());
        // What dltrain makes of the CPU's flags is what oneDNN makes of them (but for AMX).
        let in_use = library().unwrap().isa();
        assert_eq!(in_use.common(Isa(0x1ef)), isa().unwrap(), "{in_use}");
    }
}
