//! Tests that go over many cases of one kind go over the first of them in `make test`, and over all in
//! `make test-full`. Cases in which a job fails go several at a time.

use std::sync::Mutex;

/// Whether this is `make test-full`.
pub fn full() -> bool {
    std::env::var_os("DLTRAIN_TEST_FULL").is_some()
}

/// The first so many of all cases, or all of them: the first ones differ most.
pub fn first<T>(quick: usize, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    all.into_iter().take(if full() { usize::MAX } else { quick })
}

/// Checks every case, several at a time. Of a job that fails most is the second that the launcher waits for its other
/// ranks; what computes goes one after the other.
pub fn each<T: Send>(cases: impl IntoIterator<Item = T, IntoIter: Send>, check: impl Fn(T) + Sync) {
    const AT_A_TIME: usize = 4;
    let cases = Mutex::new(cases.into_iter());
    let work = || {
        loop {
            let case = cases.lock().expect("nothing fails while it is held").next();
            let Some(case) = case else { break };
            check(case);
        }
    };
    std::thread::scope(|scope| {
        (0..AT_A_TIME).for_each(|_| {
            scope.spawn(work);
        });
    });
}
