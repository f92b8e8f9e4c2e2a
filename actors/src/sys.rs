//! The few calls that the operating system offers only unsafely.
#![expect(unsafe_code, reason = "libc calls without a safe wrapper; each states why it is sound")]

/// Gives freed heap back to the operating system: glibc keeps it after a burst of closes (measured). Takes microseconds when there is nothing to give.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    // SAFETY: malloc_trim takes no pointer and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives freed heap back to the operating system, where the allocator can.
#[cfg(not(target_env = "gnu"))]
pub fn trim_heap() {}
