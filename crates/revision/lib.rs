//! `revision!()`: the git revision that the program is built from.
//!
//! A build script would say it to the library too, and a commit to the documents would compile everything anew. A macro
//! is expanded where it stands, which is `main.rs`: a commit compiles that file alone.

use std::path::Path;
use std::process::Command;

use proc_macro::TokenStream;

/// What the revision speaks for. A change in any of these while HEAD stays is a "-dirty" build.
const SOURCES: [&str; 6] = ["src", "kernels", "crates", "build.rs", "Cargo.toml", "Cargo.lock"];

/// HEAD in twelve digits, with "-dirty" where tracked sources differ from it; in a tarball of `make dist` what its file
/// REVISION says, and "unknown" without either.
#[proc_macro]
pub fn revision(_: TokenStream) -> TokenStream {
    let kept =
        || std::fs::read_to_string(Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?).join("REVISION")).ok();
    let kept = || kept().map_or("unknown".into(), |revision| revision.trim().to_string());
    let (revision, files) = read().unwrap_or_else(|| (kept(), Vec::new()));
    // The compiler looks at what is included, and expands the macro again when it changes.
    let looked_at: String =
        files.iter().map(|file| format!("const _: &[u8] = include_bytes!({file:?});")).collect();
    format!("{{ {looked_at} {revision:?} }}").parse().expect("an expression")
}

/// The revision, and the files that change with HEAD.
fn read() -> Option<(String, Vec<String>)> {
    // Unpacked inside some other repository, its revision would say nothing about this program.
    if !git(&["rev-parse", "--show-prefix"])?.is_empty() {
        return None;
    }
    // The reflog grows with every commit and checkout, wherever git keeps the branch itself.
    let files = ["HEAD", "logs/HEAD"].iter().filter_map(|name| {
        git(&["rev-parse", "--path-format=absolute", "--git-path", name])
            .filter(|path| Path::new(path).exists())
    });
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], &SOURCES[..]].concat())?;
    Some((if changed.is_empty() { head } else { format!("{head}-dirty") }, files.collect()))
}

/// What git prints, trimmed; nothing where git is missing or fails.
fn git(arguments: &[&str]) -> Option<String> {
    let directory = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let mut command = Command::new("git");
    let output =
        command.current_dir(directory).args(arguments).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
