//! The eBPF object inside the binary.

/// The object file with both programs.
#[cfg(programs_built)]
pub(super) fn bytes() -> &'static [u8] {
    const OBJECT: &[u8] = aya::include_bytes_aligned!(env!("NICPATH_OBJECT"));
    OBJECT
}

/// Compiles, so that `cargo clippy` and `cargo doc` work without the eBPF tool chain, but makes no code.
#[cfg(not(programs_built))]
pub(super) fn bytes() -> &'static [u8] {
    missing::<()>()
}

/// Generic, so that its constant is evaluated when code is made for it and not before.
#[cfg(not(programs_built))]
#[expect(clippy::extra_unused_type_parameters, reason = "see above")]
fn missing<T>() -> &'static [u8] {
    const { panic!("the eBPF programs are not built from this source yet: run `cargo xtask build`") }
}
