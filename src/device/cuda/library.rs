//! Finding the driver, cuBLAS and cuDNN, loading each once, and what can be asked of them before any work is done.
//!
//! The driver comes with the machine and is found by the loader. The other two come from a CUDA installation, from
//! PyPI's wheels or beside the executable, and are opened by their absolute paths where they are: nobody has to set
//! LD_LIBRARY_PATH. cuDNN says for which CUDA it was built, and cuBLAS is taken of the same.

use std::collections::HashSet;
use std::env;
use std::ffi::{OsStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;
use libloading::os::unix::{self, RTLD_GLOBAL, RTLD_NOW};

use super::sys::{self, Blas, CudaLibrary, Dnn, Driver, Probe};
use crate::config::environment;
use crate::device::loaded::file_of as file_of_function;
use crate::error::{Error, Result};

const DRIVER: &str = "libcuda.so.1";
const CUDNN: &str = "libcudnn.so.9";
/// Where the driver's libraries lie on some machines that the loader knows nothing of: WSL's, Red Hat's, and where
/// containers have the host's.
const BESIDE_DRIVER: [&str; 3] = ["/usr/lib/wsl/lib", "/usr/lib64/nvidia", "/usr/local/nvidia/lib64"];
const REMEDY: &str = "Load your site's CUDA and cuDNN modules, or `pip install nvidia-cudnn-cu12 nvidia-cublas-cu12` in \
                      a virtual environment, or set DLTRAIN_CUDA_PATH to the directories that hold them \
                      (DIR:DIR…). --device cpu runs without.";

/// The least that will do: CUDA 12, whose drivers start at 525.60.
const CUDA_MAJOR: c_int = 12;

/// The driver library, as far as is asked of it before a GPU is chosen.
pub struct DriverLibrary {
    pub probe: Probe,
    /// The newest CUDA the driver supports, as (major, minor); (0, 0) where it does not say.
    pub version: (i32, i32),
    text: Option<sys::ErrorText>,
    library: Library,
}

/// Everything that a GPU is driven by.
pub struct Libraries {
    pub driver: Driver,
    pub blas: Blas,
    pub dnn: Dnn,
    pub found: CudaInfo,
    dnn_text: sys::DnnText,
    // The functions live as long as these do.
    _libraries: Vec<Library>,
}

/// Which libraries were found, for `dltrain info` and the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaInfo {
    /// (major, minor)
    pub driver: (i32, i32),
    /// "9.21.0"
    pub cudnn: String,
    /// The file that cuDNN was loaded from.
    pub cudnn_path: PathBuf,
    /// The CUDA that cuBLAS is of.
    pub cublas: c_int,
    /// The file that cuBLAS was loaded from.
    pub cublas_path: PathBuf,
    /// What cuDNN compiles engines with that do more than a product: its version and its file.
    pub nvrtc: Option<((c_int, c_int), PathBuf)>,
}

/// The process's driver, loaded by the first call; the reason where there is none.
pub fn cuda() -> std::result::Result<&'static DriverLibrary, String> {
    static CUDA: OnceLock<std::result::Result<DriverLibrary, String>> = OnceLock::new();
    CUDA.get_or_init(open_driver).as_ref().map_err(Clone::clone)
}

/// Whether there is one.
pub fn has_driver() -> bool {
    cuda().is_ok()
}

/// The process's CUDA libraries, loaded by the first call.
///
/// # Errors
/// `Environment`: what is missing or too old, where it was looked for, and the remedy.
pub fn libraries() -> Result<&'static Libraries> {
    static LIBRARIES: OnceLock<Result<Libraries>> = OnceLock::new();
    LIBRARIES.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// A library's words for a code.
pub fn text(kind: CudaLibrary, code: c_int) -> String {
    let unknown = || format!("code {code}, unknown to this library");
    // Not `libraries()`: a code may come while these are being opened.
    match kind {
        CudaLibrary::Blas => sys::blas_text(code).into(),
        CudaLibrary::Nccl => super::nccl::words(code).unwrap_or_else(unknown),
        CudaLibrary::Dnn => libraries().map_or_else(|_| unknown(), |libraries| libraries.dnn_words(code)),
        CudaLibrary::Driver => {
            let Some(get) = cuda().ok().and_then(|cuda| cuda.text) else { return unknown() };
            let mut text = std::ptr::null();
            // SAFETY: the type is the reference's; the text is static and ends with a zero.
            let text = unsafe { (get(code, &mut text) == 0).then(|| sys::owned(text)).flatten() };
            text.unwrap_or_else(|| "unknown to this driver".into())
        }
    }
}

impl Libraries {
    fn dnn_words(&self, code: c_int) -> String {
        // SAFETY: any integer may be asked for; the text is static.
        unsafe { sys::owned((self.dnn_text)(code)) }.unwrap_or_default()
    }
}

/// Where the user says the libraries are; before all other places.
fn given() -> Vec<PathBuf> {
    let value = environment::CUDA_PATH.value().unwrap_or_default();
    env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Opens a library for good, its symbols visible to those opened later.
fn open_at(path: &Path) -> std::result::Result<Library, String> {
    // SAFETY: the initialisers of CUDA's libraries touch only their own data.
    let opened = unsafe { unix::Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    opened.map(Library::from).map_err(|e| match std::error::Error::source(&e) {
        Some(source) => source.to_string(),
        None => e.to_string(),
    })
}

/// A library that comes with the driver, and its file.
pub fn beside_driver(name: &str) -> Option<(Library, PathBuf)> {
    let given = given().into_iter().map(|directory| directory.join(name)).filter(|path| path.exists());
    let known = BESIDE_DRIVER.map(|directory| Path::new(directory).join(name));
    let places = given.chain([PathBuf::from(name)]).chain(known.into_iter().filter(|path| path.exists()));
    places.into_iter().find_map(|place| Some((open_at(&place).ok()?, place)))
}

fn open_driver() -> std::result::Result<DriverLibrary, String> {
    let (library, _) =
        beside_driver(DRIVER).ok_or_else(|| format!("no CUDA driver library ({DRIVER}) on this machine"))?;
    // SAFETY: the type is that of the driver's reference; one out-parameter, alive during the call.
    let version = unsafe {
        let get = library.get::<sys::DriverVersion>(b"cuDriverGetVersion\0");
        let mut number = 0;
        match get {
            Ok(get) if get(&mut number) == 0 && number > 0 => (number / 1000, number % 1000 / 10),
            _ => (0, 0),
        }
    };
    // SAFETY: this is the driver library, and it stays open.
    let probe = unsafe { Probe::load(&library) }.map_err(lacks)?;
    // SAFETY: the type is that of the driver's reference.
    let text = unsafe { library.get::<sys::ErrorText>(b"cuGetErrorString\0") }.ok().map(|symbol| *symbol);
    Ok(DriverLibrary { probe, version, text, library })
}

fn lacks(name: &str) -> String {
    format!("the CUDA driver library is too old or not one: it has no {name}")
}

fn open() -> Result<Libraries> {
    let missing = |what: String| Error::environment(format!("--device cuda: {what}. {REMEDY}"));
    let cuda = cuda().map_err(&missing)?;
    let (major, minor) = cuda.version;
    if cuda.version == (0, 0) {
        return Err(missing("the driver does not tell its version (cuDriverGetVersion failed)".into()));
    }
    if major < CUDA_MAJOR {
        return Err(Error::environment(format!(
            "--device cuda: the driver is for CUDA {major}.{minor}; dltrain needs one for CUDA {CUDA_MAJOR}.0 or newer \
             (525.60 or newer on Linux)"
        )));
    }
    // SAFETY: this is the driver library, and it stays open.
    let driver = unsafe { Driver::load(&cuda.library) }.map_err(|name| missing(lacks(name)))?;
    let places = places();
    let (dnn_library, cudnn_path) = first(&places, CUDNN).ok_or_else(|| missing(no_cudnn(&places)))?;
    let (cudnn, built_for) = dnn_version(&dnn_library).map_err(&missing)?;
    let cudnn_path = file_of(&dnn_library, b"cudnnGetVersion\0").unwrap_or(cudnn_path);
    // cuDNN calls them by itself, and finds what is open already.
    let [lt, nvrtc] =
        ["libcublasLt", "libnvrtc"].map(|name| first(&places, &format!("{name}.so.{built_for}")));
    let compiler = nvrtc.as_ref().map(|(library, path)| {
        (nvrtc_version(library), file_of(library, b"nvrtcVersion\0").unwrap_or(path.clone()))
    });
    compiler.iter().for_each(|(_, path)| open_builtins(path));
    let mut kept: Vec<Library> = lt.into_iter().chain(nvrtc).map(|(library, _)| library).collect();
    let name = format!("libcublas.so.{built_for}");
    let looked = || format!("no {name}, which cuDNN {cudnn} goes with, in {}", listed(&places));
    let (blas_library, cublas_path) = first(&places, &name).ok_or_else(|| missing(looked()))?;
    let cublas_path = file_of(&blas_library, b"cublasCreate_v2\0").unwrap_or(cublas_path);
    let incomplete = |path: &Path, name: &str| missing(format!("{} has no {name}", path.display()));
    // SAFETY: these are the libraries by their names and versions, and they stay open.
    let (blas, dnn) = unsafe {
        (
            Blas::load(&blas_library).map_err(|name| incomplete(&cublas_path, name))?,
            Dnn::load(&dnn_library).map_err(|name| incomplete(&cudnn_path, name))?,
        )
    };
    // SAFETY: the type is that of cuDNN's reference.
    let dnn_text = *unsafe { dnn_library.get::<sys::DnnText>(b"cudnnGetErrorString\0") }
        .map_err(|_| incomplete(&cudnn_path, "cudnnGetErrorString"))?;
    kept.extend([blas_library, dnn_library]);
    let found =
        CudaInfo { driver: cuda.version, cudnn, cudnn_path, cublas: built_for, cublas_path, nvrtc: compiler };
    Ok(Libraries { driver, blas, dnn, found, dnn_text, _libraries: kept })
}

/// (major, minor); (0, 0) where it does not say.
fn nvrtc_version(library: &Library) -> (c_int, c_int) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the type is that of NVRTC's reference; two out-parameters, alive during the call.
    let code =
        unsafe { library.get::<sys::NvrtcVersion>(b"nvrtcVersion\0").map(|get| get(&mut major, &mut minor)) };
    if matches!(code, Ok(0)) { (major, minor) } else { (0, 0) }
}

impl CudaInfo {
    /// What a choice among cuDNN's engines holds for: with another of these another may be faster, or there at all.
    pub fn versions(&self) -> String {
        let (major, minor) = self.driver;
        let nvrtc = self.nvrtc.as_ref().map(|((major, minor), _)| format!("NVRTC {major}.{minor}"));
        let nvrtc = nvrtc.unwrap_or_else(|| "no NVRTC".into());
        format!("cuDNN {}, CUDA {}, driver {major}.{minor}, {nvrtc}", self.cudnn, self.cublas)
    }
}

/// Opens a library for good, for others that look for it.
pub fn keep_open(path: &Path) -> std::result::Result<(), String> {
    open_builtins(path);
    std::mem::forget(open_at(path)?);
    Ok(())
}

/// Opens for good what lies beside NVRTC and is wanted when it compiles: the wheel of 13.0 looks for it only where the
/// loader looks, so that cuDNN could compile nothing.
fn open_builtins(nvrtc: &Path) {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !name(nvrtc).starts_with("libnvrtc.so") {
        return;
    }
    let beside = nvrtc.parent().and_then(|directory| directory.read_dir().ok());
    for file in beside.into_iter().flatten().flatten().map(|entry| entry.path()) {
        if name(&file).starts_with("libnvrtc-builtins.so.")
            && let Err(why) = open_at(&file).map(std::mem::forget)
        {
            log::debug!("{why}");
        }
    }
}

/// The functions of the cuDNN in this file, which stays open: what can be asked of it without a GPU needs no driver.
pub fn dnn_at(path: &Path) -> std::result::Result<(Dnn, String), String> {
    let library = open_at(path)?;
    let (version, _) = dnn_version(&library)?;
    // SAFETY: the library says that it is cuDNN 9, and is never closed.
    let dnn = unsafe { Dnn::load(&library) }.map_err(|name| format!("{} has no {name}", path.display()));
    std::mem::forget(library);
    Ok((dnn?, version))
}

/// cuDNN's version in words, and the major version of the CUDA it was built for.
fn dnn_version(library: &Library) -> std::result::Result<(String, c_int), String> {
    // SAFETY: both have had this signature since cuDNN 6 and take nothing.
    let [version, runtime] = unsafe {
        [b"cudnnGetVersion\0".as_slice(), b"cudnnGetCudartVersion\0"]
            .map(|name| library.get::<sys::DnnVersion>(name).map(|get| get()))
    };
    let (Ok(version), Ok(runtime)) = (version, runtime) else {
        return Err(format!("{CUDNN} is not cuDNN: it does not tell its version"));
    };
    // Before version 9 it was major·1000 + minor·100 + patch.
    let words = match version {
        90_000.. => format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100),
        _ => format!("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100),
    };
    match (version, runtime / 1000) {
        (..90_000 | 100_000.., _) => Err(format!("this is cuDNN {words}; dltrain needs 9.x")),
        (_, major @ 12..=13) => Ok((words, major as c_int)),
        (_, major) => {
            Err(format!("cuDNN {words} was built for CUDA {major}; dltrain needs one for 12 or 13"))
        }
    }
}

fn no_cudnn(places: &[PathBuf]) -> String {
    let older = ["libcudnn.so.8", "libcudnn.so.7"].into_iter().find(|name| first(places, name).is_some());
    match older {
        Some(name) => format!("found {name}, but dltrain needs cuDNN 9 ({CUDNN})"),
        None => format!("no cuDNN 9 ({CUDNN}) in {}", listed(places)),
    }
}

/// Where libraries are looked for, in words.
pub fn looked_in() -> String {
    listed(&places())
}

pub fn listed(places: &[PathBuf]) -> String {
    let mut names: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    names.push("the loader's own places".into());
    names.join(", ")
}

/// The first library of this name that opens, in the places or where the loader looks, and its file.
pub fn first(places: &[PathBuf], name: &str) -> Option<(Library, PathBuf)> {
    let files = places.iter().map(|place| place.join(name)).filter(|path| path.exists());
    let files: Vec<PathBuf> = files.chain([PathBuf::from(name)]).collect();
    files.into_iter().find_map(|path| {
        let opened = open_at(&path).inspect_err(|reason| log::debug!("{}: {reason}", path.display())).ok()?;
        Some((opened, path))
    })
}

/// Directories that may hold CUDA's libraries, those that are there, in the order in which they are tried.
pub fn places() -> Vec<PathBuf> {
    let mut places = given();
    if let Some(directory) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(directory.to_path_buf());
        places.extend(directory.parent().map(|prefix| prefix.join("lib")));
    }
    let roots = ["CUDNN_HOME", "CUDA_HOME", "CUDA_PATH"].map(env::var_os).into_iter().flatten();
    for root in roots.map(PathBuf::from) {
        places.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|part| root.join(part)));
    }
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(env::var_os).into_iter().flatten().map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    for prefix in prefixes.chain(python(&path)).chain(["/usr/local", "/usr"].map(PathBuf::from)) {
        places.extend(wheels(&prefix.join("lib")));
    }
    places.push("/usr/local/cuda/lib64".into());
    places.extend(BESIDE_DRIVER.map(PathBuf::from));
    let mut seen = HashSet::new();
    places.retain(|place| place.is_dir() && seen.insert(place.clone()));
    places
}

/// The prefix of the `python3` that a shell would run: that of a virtual environment where its bin/ is on PATH, whether
/// it is activated or not. There python3 is a link to the system's, so no link is followed.
fn python(path: &OsStr) -> Option<PathBuf> {
    let directory = env::split_paths(path).find(|directory| directory.join("python3").is_file())?;
    directory.parent().map(Path::to_path_buf)
}

/// Where PyPI's wheels put them: lib/python3.*/site-packages/nvidia/*/lib.
fn wheels(lib: &Path) -> Vec<PathBuf> {
    let entries = |directory: &Path| -> Vec<PathBuf> {
        let read = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let is_python = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("python3"))
    };
    let pythons = entries(lib).into_iter().filter(is_python);
    let packages = pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name).join("nvidia")));
    packages.flat_map(|nvidia| entries(&nvidia)).map(|package| package.join("lib")).collect()
}

/// The file that a library's function was loaded from.
pub fn file_of(library: &Library, name: &[u8]) -> Option<PathBuf> {
    // SAFETY: only the address is looked at.
    let address = *unsafe { library.get::<*const c_void>(name) }.ok()?;
    file_of_function(address.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A virtual environment that is on PATH and not activated: its python3 is a link to the system's.
    #[test]
    fn wheels_are_found_beside_the_python_on_path() {
        let folder = tempfile::tempdir().unwrap();
        let [system, environment] = ["system", "environment"].map(|name| folder.path().join(name));
        let libraries = ["cudnn", "cu13"].map(|name| {
            let library = environment.join("lib/python3.12/site-packages/nvidia").join(name).join("lib");
            std::fs::create_dir_all(&library).unwrap();
            library
        });
        for prefix in [&system, &environment] {
            std::fs::create_dir_all(prefix.join("bin")).unwrap();
        }
        std::fs::write(system.join("bin/python3"), "").unwrap();
        std::os::unix::fs::symlink(system.join("bin/python3"), environment.join("bin/python3")).unwrap();
        let path = |places: &[&Path]| env::join_paths(places).unwrap();
        let (empty, bins) = (folder.path(), [&environment, &system].map(|prefix| prefix.join("bin")));
        let found = python(&path(&[empty, &bins[0], &bins[1]])).unwrap();
        assert_eq!(found, environment);
        let [cudnn, others] = libraries;
        assert_eq!(wheels(&found.join("lib")), [others, cudnn]);
        assert_eq!(python(&path(&[&bins[1], &bins[0]])), Some(system));
        assert_eq!(python(&path(&[empty])), None);
    }
}
