//! `dltrain info` names the GPUs, or why there are none, and never dies of a driver.
//!
//! Drivers that this machine may not have are played by small libraries built here; the probe runs in a child
//! process that finds them in LD_LIBRARY_PATH.

use std::fs;
use std::process::Command;

use dltrain::device::cuda::{Driver, GpuInfo, probe};

#[test]
#[ignore = "a child of other tests"]
fn child_probe() {
    println!("BEGIN {:?}", probe());
}

/// What the probe answers where libcuda is made of this C source.
fn probe_with(source: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fake.c");
    fs::write(&file, source).unwrap();
    // Both names, so that a real driver on this machine is not found first.
    for name in ["libcuda.so", "libcuda.so.1"] {
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.path().join(name))
            .arg(&file)
            .status();
        assert!(status.unwrap().success(), "cc failed");
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "gpu_probe::child_probe", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "the probe died: {text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find_map(|line| line.split_once("BEGIN ")).expect("an answer").1.to_string()
}

const VERSION: &str = "int cuDriverGetVersion(int *v) { *v = 12020; return 0; }\n";
/// Answers that are never reached where cuInit fails.
const REST: &str = "
int cuDeviceGetCount(int *n) { *n = COUNT; return 0; }
int cuDeviceGet(int *d, int i) { *d = 70 + i; return i < COUNT ? 0 : 101; }
int cuDeviceGetName(char *s, int n, int d) { __builtin_snprintf(s, n, \"GPU %d\", d); return 0; }
int cuDeviceTotalMem_v2(unsigned long *b, int d) { *b = 1000ul * d; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : -1; return 0; }
int cuGetErrorString(int e, const char **s) { *s = \"words of the driver\"; return 0; }
";

fn fake(init: i32, count: i32) -> String {
    format!("#define COUNT {count}\nint cuInit(unsigned f) {{ return {init}; }}\n{VERSION}{REST}")
}

#[test]
fn this_machine_gives_gpus_or_a_reason() {
    match probe() {
        Ok(driver) => assert!(!driver.gpus.is_empty() && driver.cuda_version.0 >= 9, "{driver:?}"),
        Err(reason) => assert!(reason.contains("CUDA driver"), "{reason}"),
    }
}

#[test]
fn a_driver_without_a_gpu_is_a_reason() {
    let expected = r#"Err("a CUDA 12.2 driver is installed, but it sees no GPU")"#;
    assert_eq!(probe_with(&fake(100, 0), &[]), expected);
    assert_eq!(probe_with(&fake(0, 0), &[]), expected);
    let hidden = probe_with(&fake(100, 0), &[("CUDA_VISIBLE_DEVICES", "")]);
    assert!(hidden.contains("sees no GPU (CUDA_VISIBLE_DEVICES is "), "{hidden}");
}

#[test]
fn a_driver_that_fails_is_a_reason() {
    let failed = "but cuInit failed with code 803 (words of the driver)";
    assert!(probe_with(&fake(803, 0), &[]).contains(failed));
    // A code that no header known today has.
    assert!(probe_with(&fake(123_456, 0), &[]).contains("code 123456"));
}

#[test]
fn a_library_without_the_calls_is_a_reason() {
    assert!(probe_with("int unrelated;", &[]).contains("too old or not one: it has no cuInit"));
    let only_init = format!("int cuInit(unsigned f) {{ return 0; }}\n{VERSION}");
    assert!(probe_with(&only_init, &[]).contains("it has no cuDeviceGetCount"));
}

#[test]
fn every_gpu_is_named() {
    let gpu = |index| GpuInfo {
        index,
        name: format!("GPU {}", 70 + index),
        compute_capability: (9, 0),
        memory_bytes: 1000 * (70 + index as u64),
        identity: "ffffffff:ffffffff:ffffffff".into(),
    };
    let expected = Driver { cuda_version: (12, 2), gpus: vec![gpu(0), gpu(1)] };
    assert_eq!(probe_with(&fake(0, 2), &[]), format!("{:?}", Ok::<_, String>(expected)));
}
