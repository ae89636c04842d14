//! The doubles of CUDA's libraries (tests/fake_cuda) notice what a GPU would punish, and what it might let pass.
//!
//! Each scene runs in a process of its own, with the doubles first in LD_LIBRARY_PATH: what they notice may end it.

use crate::support::fake_cuda;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::process::{Command, Output};
use std::ptr::{null, null_mut};

use libloading::Library;

use dltrain::device::{Device, Memory};

type Handle = *mut c_void;
type Address = *mut f32;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_CONTEXT: c_int = 201;
const NOT_FOUND: c_int = 500;
const NOT_READY: c_int = 600;
const ILLEGAL_ADDRESS: c_int = 700;
const CAPTURE_UNSUPPORTED: c_int = 900;
const CAPTURE_INVALIDATED: c_int = 901;
const CAPTURE_UNJOINED: c_int = 904;

/// Calls a function of the driver's double with arguments of the types given.
macro_rules! call {
    ($cuda:expr, $name:ident($($value:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of the driver's reference; pointers are to living variables, or wrong on purpose.
        unsafe {
            let function = $cuda.0.get::<unsafe extern "C" fn($($type),*) -> c_int>(stringify!($name).as_bytes());
            function.unwrap()($($value),*)
        }
    }};
}

/// CUipcMemHandle.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u8; 64]);

const KERNELS: &str = concat!(include_str!("../../kernels/dltrain.ptx"), "\0");

struct Cuda(Library);

impl Cuda {
    fn open() -> Cuda {
        // SAFETY: the double's constructors only fill tables.
        let cuda = Cuda(unsafe { Library::new("libcuda.so.1") }.unwrap());
        assert_eq!(call!(cuda, cuInit(0 => u32)), 0);
        cuda
    }

    /// With a context.
    fn ready() -> Cuda {
        let cuda = Cuda::open();
        let mut context: Handle = null_mut();
        assert_eq!(call!(cuda, cuDevicePrimaryCtxRetain(&mut context => *mut Handle, 0 => c_int)), 0);
        assert_eq!(call!(cuda, cuCtxSetCurrent(context => Handle)), 0);
        cuda
    }

    fn alloc(&self, floats: usize) -> Address {
        let mut address = null_mut();
        assert_eq!(call!(self, cuMemAlloc_v2(&mut address => *mut Address, 4 * floats => usize)), 0);
        address
    }

    fn stream(&self) -> Handle {
        let mut stream = null_mut();
        assert_eq!(call!(self, cuStreamCreate(&mut stream => *mut Handle, 1 => u32)), 0);
        stream
    }

    fn fill(&self, at: Address, floats: i64, value: f32, stream: Handle) -> c_int {
        // While a stream is captured nothing can be loaded: `captured` loads before.
        self.launch(self.filling(KERNELS), at, floats, value, stream)
    }

    /// `fill_f32` of a module.
    fn filling(&self, image: &str) -> Handle {
        let (mut module, mut function) = (null_mut(), null_mut());
        let loaded = call!(self, cuModuleLoadDataEx(&mut module => *mut Handle, image.as_ptr() => *const u8,
            0 => c_uint, null() => *const c_int, null_mut() => *mut Handle));
        assert_eq!(loaded, 0);
        let name = c"fill_f32".as_ptr();
        let got = call!(self, cuModuleGetFunction(
            &mut function => *mut Handle, module => Handle, name => *const c_char));
        assert_eq!(got, 0);
        function
    }

    fn launch(&self, function: Handle, mut at: Address, mut n: i64, mut value: f32, stream: Handle) -> c_int {
        let mut arguments: [Handle; 3] = [(&raw mut at).cast(), (&raw mut n).cast(), (&raw mut value).cast()];
        call!(self, cuLaunchKernel(function => Handle, 2 => u32, 1 => u32, 1 => u32, 256 => u32, 1 => u32, 1 => u32,
            0 => u32, stream => Handle, arguments.as_mut_ptr() => *mut Handle, null_mut() => *mut Handle))
    }

    fn read(&self, from: Address, stream: Handle) -> [f32; 4] {
        let mut to = [0f32; 4];
        let copied = call!(self, cuMemcpyDtoHAsync_v2(
            to.as_mut_ptr() => *mut f32, from => Address, 16 => usize, stream => Handle));
        assert_eq!(copied, 0);
        to
    }
}

/// Runs a scene below as a process.
fn scene(name: &str, variables: &[(&str, &str)]) -> Output {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("doubles::{name}"), "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", fake_cuda::libraries())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "no scene {name}: {said}");
    output
}

fn plays(name: &str, variables: &[(&str, &str)]) {
    let output = scene(name, variables);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

fn dies(name: &str, of: &str) {
    let output = scene(name, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(of), "{name}: {said}");
}

#[test]
fn work_is_done_in_order_and_what_waits_is_waited_for() {
    plays("scene_kernels_and_copies", &[]);
    plays("scene_kernels_and_copies", &[("FAKE_CUDA_DELAYED", "1")]);
    plays("scene_without_a_wait", &[("FAKE_CUDA_DELAYED", "1")]);
    plays("scene_captured", &[]);
    plays("scene_captured", &[("FAKE_CUDA_DELAYED", "1")]);
    plays("scene_forked", &[]);
    plays("scene_forked", &[("FAKE_CUDA_DELAYED", "1")]);
}

#[test]
fn wrong_uses_are_refused() {
    plays("scene_refusals", &[("FAKE_CUDA_MEMORY", "1000000")]);
    plays("scene_no_context", &[]);
    plays("scene_illegal_address", &[]);
    plays("scene_early", &[]);
    plays("scene_two_devices", &[("FAKE_CUDA_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0,7,1")]);
}

#[test]
fn device_memory_is_not_the_hosts() {
    dies("scene_read_by_the_host", "");
    dies("scene_written_behind", "byte 20 of an allocation of 20 bytes was written");
}

/// A card goes on with what is under way when its stream is destroyed.
#[test]
fn what_a_device_still_copies_when_it_goes_is_not_freed_under_it() {
    plays("scene_dropped", &[("FAKE_CUDA_DELAYED", "1"), ("MALLOC_PERTURB_", "85")]);
}

#[test]
fn the_call_that_is_to_fail_fails() {
    plays("scene_failing", &[("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:2")]);
    // cuInit is the first call of all.
    let output = scene("scene_kernels_and_copies", &[("FAKE_CUDA_FAIL", "*:1")]);
    assert!(!output.status.success());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    plays(
        "scene_failing",
        &[("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:2"), ("FAKE_CUDA_LOG", log.to_str().unwrap())],
    );
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.starts_with("1 cuInit 1\n2 cuDevicePrimaryCtxRetain 1\n"), "{text}");
    assert!(text.ends_with("end allocations 1 bytes 40 peak 40 pinned 0\n"), "{text}");
}

#[test]
fn memory_is_shared_between_processes() {
    plays("scene_lender", &[]);
}

/// Streams side by side, each in order; what waits for another begins when that one has ended; the host comes later by
/// what it waits for, and by nothing else.
#[test]
fn what_the_doubles_do_takes_virtual_time() {
    let rates = ("FAKE_CUDA_RATES", "4000,400,50,10");
    for late in ["0", "1"] {
        plays("scene_clock", &[("FAKE_CUDA_CLOCK", "1"), rates, ("FAKE_CUDA_DELAYED", late)]);
    }
}

// ---- scenes ----

#[test]
#[ignore = "a scene"]
fn scene_clock() {
    const BYTES: usize = 1 << 20;
    let cuda = Cuda::ready();
    let (one, other, at) = (cuda.stream(), cuda.stream(), cuda.alloc(BYTES / 4));
    let host = vec![0f32; BYTES / 4];
    let pinned = call!(cuda, cuMemHostRegister_v2(host.as_ptr() => *const f32, BYTES => usize, 0 => u32));
    assert_eq!(pinned, 0);
    let events = [(); 4].map(|()| {
        let mut event = null_mut();
        assert_eq!(call!(cuda, cuEventCreate(&mut event => *mut Handle, 0 => u32)), 0);
        event
    });
    let mark = |event: usize, stream: Handle| {
        assert_eq!(call!(cuda, cuEventRecord(events[event] => Handle, stream => Handle)), 0);
    };
    let upload = |stream: Handle| {
        let copied = call!(cuda, cuMemcpyHtoDAsync_v2(
            at => Address, host.as_ptr() => *const f32, BYTES => usize, stream => Handle));
        assert_eq!(copied, 0);
    };
    let between = |first: usize, second: usize| {
        let mut milliseconds = 0f32;
        let (first, second) = (events[first], events[second]);
        let code = call!(cuda, cuEventElapsedTime(
            &mut milliseconds => *mut f32, first => Handle, second => Handle));
        if code == 0 { Ok((milliseconds * 1e6).round() as u32) } else { Err(code) }
    };
    let query = |event: usize| call!(cuda, cuEventQuery(events[event] => Handle));
    // 2 microseconds and 50 GB/s; side by side and one after the other.
    let copy = 2000 + (BYTES / 50) as u32;
    mark(0, one);
    upload(one);
    upload(other);
    upload(other);
    mark(1, one);
    mark(2, other);
    assert_eq!(call!(cuda, cuStreamWaitEvent(one => Handle, events[2] => Handle, 0 => u32)), 0);
    upload(one);
    mark(3, one);
    assert_eq!(between(0, 1), Err(NOT_READY));
    // Who asks in vain finds it the next time, and no earlier event late.
    let asked = (0..9).find(|_| query(1) == 0);
    assert!(asked.is_some() && query(2) == NOT_READY, "{asked:?}");
    assert_eq!(between(0, 1), Ok(copy));
    assert_eq!(call!(cuda, cuEventSynchronize(events[3] => Handle)), 0);
    assert_eq!([between(0, 2), between(0, 3), between(2, 3)], [Ok(2 * copy), Ok(3 * copy), Ok(copy)]);
    // Enqueued only now, it begins now.
    upload(other);
    mark(1, other);
    assert_eq!(call!(cuda, cuStreamSynchronize(other => Handle)), 0);
    assert_eq!(between(0, 1), Ok(4 * copy));
}

#[test]
#[ignore = "a scene"]
fn scene_kernels_and_copies() {
    let cuda = Cuda::ready();
    let (stream, other, at) = (cuda.stream(), cuda.stream(), cuda.alloc(4));
    assert!(cuda.read(at, stream).iter().all(|v| v.is_nan()), "new memory holds NaN");
    assert_eq!(cuda.fill(at, 4, 2.5, stream), 0);
    assert_eq!(cuda.read(at, stream), [2.5; 4]);
    // A second stream that waits for the first.
    let mut event = null_mut();
    assert_eq!(call!(cuda, cuEventCreate(&mut event => *mut Handle, 2 => u32)), 0);
    assert_eq!(cuda.fill(at, 4, 3.5, stream), 0);
    assert_eq!(call!(cuda, cuEventRecord(event => Handle, stream => Handle)), 0);
    assert_eq!(call!(cuda, cuStreamWaitEvent(other => Handle, event => Handle, 0 => u32)), 0);
    assert_eq!(cuda.read(at, other), [3.5; 4]);
    assert_eq!(call!(cuda, cuEventQuery(event => Handle)), 0);
    assert_eq!(call!(cuda, cuMemFree_v2(at => Address)), 0);
}

#[test]
#[ignore = "a scene"]
fn scene_without_a_wait() {
    let cuda = Cuda::ready();
    let (stream, other, at) = (cuda.stream(), cuda.stream(), cuda.alloc(4));
    let mut event = null_mut();
    assert_eq!(call!(cuda, cuEventCreate(&mut event => *mut Handle, 2 => u32)), 0);
    assert_eq!(cuda.fill(at, 4, 1.5, stream), 0);
    assert_eq!(cuda.fill(at, 4, 2.5, stream), 0);
    assert_eq!(call!(cuda, cuEventRecord(event => Handle, stream => Handle)), 0);
    assert_eq!(call!(cuda, cuEventQuery(event => Handle)), NOT_READY);
    assert_ne!(cuda.read(at, other), [2.5; 4], "another stream sees what it did not wait for");
    assert_eq!(call!(cuda, cuStreamSynchronize(stream => Handle)), 0);
    assert_eq!(cuda.read(at, other), [2.5; 4]);
}

#[test]
#[ignore = "a scene"]
fn scene_captured() {
    let cuda = Cuda::ready();
    let (stream, at) = (cuda.stream(), cuda.alloc(4));
    let (mut graph, mut executable) = (null_mut::<c_void>(), null_mut::<c_void>());
    let begin = || call!(cuda, cuStreamBeginCapture_v2(stream => Handle, 0 => c_int));
    assert_eq!(cuda.fill(at, 4, 1.0, stream), 0);
    assert_eq!(begin(), 0);
    assert_eq!(call!(cuda, cuMemsetD8Async(at => Address, 0 => u8, 16 => usize, stream => Handle)), 0);
    assert_eq!(call!(cuda, cuStreamEndCapture(stream => Handle, &mut graph => *mut Handle)), 0);
    let made =
        call!(cuda, cuGraphInstantiateWithFlags(&mut executable => *mut Handle, graph => Handle, 0 => u64));
    assert_eq!(made, 0);
    assert_eq!(cuda.read(at, stream), [1.0; 4], "what is captured is not done yet");
    assert_eq!(call!(cuda, cuGraphLaunch(executable => Handle, stream => Handle)), 0);
    assert_eq!(cuda.read(at, stream), [0.0; 4]);
    assert_eq!(begin(), 0);
    let mut never: Address = null_mut();
    let allocated = call!(cuda, cuMemAlloc_v2(&mut never => *mut Address, 4 => usize));
    assert_eq!(allocated, CAPTURE_UNSUPPORTED);
    assert_eq!(
        call!(cuda, cuStreamEndCapture(stream => Handle, &mut graph => *mut Handle)),
        CAPTURE_INVALIDATED
    );
}

/// A graph of two branches, of which the second leaves an event that each launch marks anew.
#[test]
#[ignore = "a scene"]
fn scene_forked() {
    let cuda = Cuda::ready();
    let (first, second, at, function) = (cuda.stream(), cuda.stream(), cuda.alloc(4), cuda.filling(KERNELS));
    let event = || {
        let mut event: Handle = null_mut();
        assert_eq!(call!(cuda, cuEventCreate(&mut event => *mut Handle, 2 => c_uint)), 0);
        event
    };
    let (forked, done, joined) = (event(), event(), event());
    let record = |event, stream| call!(cuda, cuEventRecord(event => Handle, stream => Handle));
    let mark = || call!(cuda, cuEventRecordWithFlags(done => Handle, second => Handle, 1 => c_uint));
    let wait = |stream, event| call!(cuda, cuStreamWaitEvent(stream => Handle, event => Handle, 0 => c_uint));
    let is_done = || call!(cuda, cuEventQuery(done => Handle)) == 0;
    assert_eq!(mark(), INVALID_VALUE, "it is for captures alone");
    let capture = |joins: bool| {
        let mut graph = null_mut::<c_void>();
        assert_eq!(call!(cuda, cuStreamBeginCapture_v2(first => Handle, 0 => c_int)), 0);
        assert_eq!(cuda.launch(function, at, 4, 1.0, first), 0);
        assert_eq!([record(forked, first), wait(second, forked)], [0; 2]);
        assert_eq!([cuda.launch(function, at, 2, 2.0, second), mark()], [0; 2]);
        if joins {
            assert_eq!([record(joined, second), wait(first, joined)], [0; 2]);
            assert_eq!(cuda.launch(function, at, 1, 3.0, first), 0);
        }
        (call!(cuda, cuStreamEndCapture(first => Handle, &mut graph => *mut Handle)), graph)
    };
    assert_eq!(capture(false).0, CAPTURE_UNJOINED);
    let (code, graph) = capture(true);
    assert_eq!(code, 0);
    let mut executable = null_mut::<c_void>();
    let made =
        call!(cuda, cuGraphInstantiateWithFlags(&mut executable => *mut Handle, graph => Handle, 0 => u64));
    assert_eq!(made, 0);
    assert!(is_done(), "nothing has marked it");
    for value in [7.0, 8.0] {
        assert_eq!(cuda.launch(function, at, 4, value, first), 0);
        assert_eq!(call!(cuda, cuGraphLaunch(executable => Handle, first => Handle)), 0);
        let late = std::env::var("FAKE_CUDA_DELAYED").is_ok();
        assert_eq!(is_done(), !late, "a launch marks it anew");
        while !is_done() {}
        assert_eq!(cuda.read(at, first), [3.0, 2.0, 1.0, 1.0]);
    }
}

/// CUlaunchConfig with one CUlaunchAttribute: its number, and a flag.
#[repr(C)]
struct Launch {
    numbers: [u32; 7],
    stream: Handle,
    attribute: *const [i32; 18],
    count: u32,
}

/// A kernel that may begin before what is in front of it has ended must wait for that itself; that of `dltrain.ptx`
/// does not.
#[test]
#[ignore = "a scene"]
fn scene_early() {
    let cuda = Cuda::ready();
    let (stream, mut at) = (cuda.stream(), cuda.alloc(4));
    let waits = KERNELS.replace("\n{\n", "\n{\n\tgriddepcontrol.wait;\n");
    let (mut n, mut value) = (4i64, 2.5f32);
    let mut arguments: [Handle; 3] = [(&raw mut at).cast(), (&raw mut n).cast(), (&raw mut value).cast()];
    let mut launched = |image: &str, attribute: i32| {
        let function = cuda.filling(image);
        let mut attributes = [0; 18];
        (attributes[0], attributes[2]) = (attribute, 1);
        let launch =
            Launch { numbers: [2, 1, 1, 256, 1, 1, 0], stream, attribute: &raw const attributes, count: 1 };
        call!(cuda, cuLaunchKernelEx(&raw const launch => *const Launch, function => Handle,
            arguments.as_mut_ptr() => *mut Handle, null_mut() => *mut Handle))
    };
    assert_eq!(launched(&waits, 6), 0);
    assert_eq!(cuda.read(at, stream), [2.5; 4]);
    assert_eq!(launched(&waits, 5), INVALID_VALUE);
    assert_eq!(launched(KERNELS, 6), ILLEGAL_ADDRESS);
}

#[test]
#[ignore = "a scene"]
fn scene_refusals() {
    let cuda = Cuda::ready();
    let at = cuda.alloc(5);
    let mut more: Address = null_mut();
    assert_eq!(call!(cuda, cuMemAlloc_v2(&mut more => *mut Address, 999_981 => usize)), OUT_OF_MEMORY);
    assert_eq!(call!(cuda, cuMemAlloc_v2(&mut more => *mut Address, 0 => usize)), INVALID_VALUE);
    let mut host = [0f32; 6];
    let mut copy = |from: Address, bytes: usize| {
        call!(cuda, cuMemcpyDtoHAsync_v2(
            host.as_mut_ptr() => *mut f32, from => Address, bytes => usize, null_mut() => Handle))
    };
    assert_eq!((copy(at, 20), copy(at, 21), copy(at.wrapping_add(1), 20)), (0, INVALID_VALUE, INVALID_VALUE));
    assert_eq!(call!(cuda, cuMemFree_v2(at.wrapping_add(1) => Address)), INVALID_VALUE);
    assert_eq!(
        (call!(cuda, cuMemFree_v2(at => Address)), call!(cuda, cuMemFree_v2(at => Address))),
        (0, INVALID_VALUE)
    );
    let (mut module, mut function) = (null_mut(), null_mut());
    let image = ".version 7.0\n.target sm_60\n.entry other(\0";
    assert_eq!(
        call!(cuda, cuModuleLoadDataEx(&mut module => *mut Handle, image.as_ptr() => *const u8, 0 => c_uint, null() => *const c_int, null_mut() => *mut Handle)),
        0
    );
    let name = c"fill_f32".as_ptr();
    let got = call!(cuda, cuModuleGetFunction(&mut function => *mut Handle, module => Handle, name => *const c_char));
    assert_eq!(got, NOT_FOUND, "the module does not have it, though there is such a kernel");
}

#[test]
#[ignore = "a scene"]
fn scene_no_context() {
    let cuda = Cuda::open();
    let mut at: Address = null_mut();
    assert_eq!(call!(cuda, cuMemAlloc_v2(&mut at => *mut Address, 4 => usize)), INVALID_CONTEXT);
}

#[test]
#[ignore = "a scene"]
fn scene_illegal_address() {
    let cuda = Cuda::ready();
    let (stream, mut host) = (cuda.stream(), [0f32; 4]);
    assert_eq!(cuda.fill(host.as_mut_ptr(), 4, 1.0, stream), ILLEGAL_ADDRESS);
    assert_eq!(
        call!(cuda, cuStreamSynchronize(stream => Handle)),
        ILLEGAL_ADDRESS,
        "nothing succeeds any more"
    );
    assert_eq!(host, [0.0; 4]);
}

#[test]
#[ignore = "a scene"]
fn scene_two_devices() {
    let cuda = Cuda::open();
    let (mut count, mut name) = (0, [0u8; 32]);
    assert_eq!(call!(cuda, cuDeviceGetCount(&mut count => *mut c_int)), 0);
    assert_eq!(count, 2, "up to the first that there is not");
    assert_eq!(call!(cuda, cuDeviceGetName(name.as_mut_ptr() => *mut u8, 32 => c_int, 0 => c_int)), 0);
    assert!(name.starts_with(b"Fake GPU 2\0"));
}

#[test]
#[ignore = "a scene"]
fn scene_read_by_the_host() {
    let at = Cuda::ready().alloc(4);
    // SAFETY: none: that this ends the process is what the test is for.
    println!("{}", unsafe { at.read_volatile() });
}

#[test]
#[ignore = "a scene"]
fn scene_written_behind() {
    let cuda = Cuda::ready();
    let at = cuda.alloc(5);
    assert_eq!(cuda.fill(at, 6, 1.0, null_mut()), 0);
    call!(cuda, cuMemFree_v2(at => Address));
}

#[test]
#[ignore = "a scene"]
fn scene_failing() {
    let cuda = Cuda::ready();
    let mut at: Address = null_mut();
    let mut alloc = || call!(cuda, cuMemAlloc_v2(&mut at => *mut Address, 40 => usize));
    assert_eq!((alloc(), alloc()), (0, OUT_OF_MEMORY));
}

/// Fills memory and lets a process of its own read it.
#[test]
#[ignore = "a scene"]
fn scene_lender() {
    let cuda = Cuda::ready();
    // What shares a block of 2 MiB with others would be offered with them.
    let (small, at, mut handle) = (cuda.alloc(4), cuda.alloc(1 << 19), IpcHandle([0; 64]));
    assert_ne!(call!(cuda, cuIpcGetMemHandle(&mut handle => *mut IpcHandle, small => Address)), 0);
    assert_eq!(cuda.fill(at, 4, 7.5, null_mut()), 0);
    assert_eq!(call!(cuda, cuIpcGetMemHandle(&mut handle => *mut IpcHandle, at => Address)), 0);
    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    plays("scene_borrower", &[("HANDLE", &text)]);
    assert_eq!(cuda.read(at, null_mut()), [8.5; 4]);
}

#[test]
#[ignore = "a scene"]
fn scene_borrower() {
    let cuda = Cuda::ready();
    let text = std::env::var("HANDLE").unwrap();
    let handle = IpcHandle(std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()));
    let mut at: Address = null_mut();
    let opened = call!(cuda, cuIpcOpenMemHandle_v2(&mut at => *mut Address, handle => IpcHandle, 1 => u32));
    assert_eq!(opened, 0);
    assert_eq!(cuda.read(at, null_mut()), [7.5; 4]);
    assert_eq!(cuda.fill(at, 4, 8.5, null_mut()), 0);
    assert_eq!(call!(cuda, cuIpcCloseMemHandle(at => Address)), 0);
}

#[test]
#[ignore = "a scene"]
fn scene_dropped() {
    const BYTES: usize = 1 << 20;
    let device = dltrain::device::cuda::Cuda::new(0, false, 1).unwrap();
    let (host, to) = (Memory::host(BYTES).unwrap(), device.allocate(BYTES).unwrap());
    device.copy_to_device_after(&host, &to, &device.record().unwrap()).unwrap();
    drop(host);
    drop(device);
    // Of the copy the double reads the host's memory now, at the latest.
    drop(to);
}
