//! Tests that go over many cases of one kind go over the first of them in `make test`, and over all in
//! `make test-full`.

/// Whether this is `make test-full`.
pub fn full() -> bool {
    std::env::var_os("DLTRAIN_TEST_FULL").is_some()
}

/// The first so many of all cases, or all of them: the first ones differ most.
pub fn first<T>(quick: usize, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    all.into_iter().take(if full() { usize::MAX } else { quick })
}
