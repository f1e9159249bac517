//! A replacement for the C library's allocator, a tenth of its size: wasi-libc's is a tenth of a small plugin. Echo has
//! 110 KB with this one, 121 KB with wasi-libc's and 123 KB with talc.
//!
//! A plugin's instance lives for one call on one thread, so the requirements are low. Block sizes are powers of
//! two; a freed block goes to its size's free list; memory is never returned. At worst half of each block is
//! unused. Rust's standard library allocates through these symbols on WASI, and the linker uses the C library's
//! only in programs that define none.

use core::arch::wasm32::{memory_grow, memory_size};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

const PAGE: usize = 65_536;
/// The header before each block. Its size is also the alignment of all blocks, which suffices for every type except
/// C's `long double`; `aligned_alloc` provides more. It is small, since a JSON document consists of hundreds of
/// short strings.
const HEADER: usize = 8;
/// The smallest block, including its header, is 2⁴ bytes; the largest, 2³¹.
const MIN_CLASS: usize = 4;
const MAX_CLASS: usize = 31;
/// Memory that a call can use without growing, which costs the host two page table changes and as many interrupts
/// of its other processors. It is zeroed, so it takes no space in the file.
const FIRST: usize = 256 << 10;
/// WASI's error number `ENOMEM`.
const OUT_OF_MEMORY: c_int = 48;

#[repr(C, align(8))]
struct Header {
    class: usize,
    /// The start of the block. It is before this header if the block is aligned to more than [`HEADER`].
    start: *mut Free,
}

/// A free block.
struct Free {
    next: *mut Free,
}

struct Heap {
    free: [*mut Free; MAX_CLASS + 1],
    /// The memory between these two has not been used yet.
    fresh: usize,
    end: usize,
}

struct SingleThreaded(UnsafeCell<Heap>);

// SAFETY: wasm32-wasip1 has one thread.
unsafe impl Sync for SingleThreaded {}

static HEAP: SingleThreaded = SingleThreaded(UnsafeCell::new(Heap {
    free: [null_mut(); MAX_CLASS + 1],
    fresh: 0,
    end: 0,
}));

#[repr(C, align(8))]
struct First(UnsafeCell<MaybeUninit<[u8; FIRST]>>);

// SAFETY: as above.
unsafe impl Sync for First {}

static MEMORY: First = First(UnsafeCell::new(MaybeUninit::uninit()));

impl Heap {
    /// Returns a block of 2^class bytes, aligned to [`HEADER`]; null when the memory limit is reached.
    fn take(&mut self, class: usize) -> *mut Free {
        let first = self.free[class];
        if !first.is_null() {
            // SAFETY: a block in a list is unused and was written by `give` of the same class.
            self.free[class] = unsafe { (*first).next };
            return first;
        }
        let size = 1 << class;
        if self.end == 0 {
            self.fresh = MEMORY.0.get() as usize;
            self.end = self.fresh + FIRST;
        }
        if self.end - self.fresh < size {
            // Growing is expensive, so grow by an eighth; near the limit, by the required size.
            let least = size.div_ceil(PAGE);
            let mut pages = least.max(memory_size(0) / 8);
            let mut old = memory_grow(0, pages);
            if old == usize::MAX {
                pages = least;
                old = memory_grow(0, pages);
            }
            if old == usize::MAX {
                return null_mut();
            }
            // The rest of the last growth stays usable if nobody else grew the memory in between; otherwise it is
            // lost.
            if old * PAGE != self.end {
                self.fresh = old * PAGE;
            }
            self.end = (old + pages) * PAGE;
        }
        let block = self.fresh;
        self.fresh += size;
        block as *mut Free
    }

    fn give(&mut self, block: *mut Free, class: usize) {
        // SAFETY: the block is unused from now on and at least as large as `Free`.
        let next = self.free[class];
        unsafe {
            block.write(Free { next });
        }
        self.free[class] = block;
    }
}

fn heap() -> &'static mut Heap {
    // SAFETY: one thread, and no function here calls another while it holds this.
    unsafe { &mut *HEAP.0.get() }
}

fn allocate(size: usize, align: usize) -> *mut c_void {
    let slack = if align > HEADER { align } else { 0 };
    let Some(total) = size.checked_add(HEADER + slack) else {
        return null_mut();
    };
    let class = (usize::BITS - (total - 1).leading_zeros()) as usize;
    let class = class.max(MIN_CLASS);
    if class > MAX_CLASS {
        return null_mut();
    }
    let start = heap().take(class);
    if start.is_null() {
        return null_mut();
    }
    let block = (start as usize + HEADER).next_multiple_of(align.max(HEADER)) as *mut Header;
    // SAFETY: the header stands before the block, at or after `start`, and what follows it has `size` bytes.
    unsafe { block.sub(1).write(Header { class, start }) };
    block.cast()
}

/// C's `malloc`.
#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(size, HEADER)
}

/// C's `calloc`.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else {
        return null_mut();
    };
    let block = allocate(total, HEADER);
    if !block.is_null() {
        // SAFETY: the block has that many bytes.
        unsafe { block.write_bytes(0, total) };
    }
    block
}

/// C's `aligned_alloc`; the alignment is a power of two.
#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    allocate(size, align)
}

/// C's `posix_memalign`.
///
/// # Safety
///
/// `out` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let block = allocate(size, align);
    if block.is_null() {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(block) };
    0
}

/// C's `free`.
///
/// # Safety
///
/// `block` is null or was returned by a function of this module and not freed since.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    if !block.is_null() {
        // SAFETY: `allocate` wrote a header before each block.
        let Header { class, start } = unsafe { block.cast::<Header>().sub(1).read() };
        heap().give(start, class);
    }
}

/// C's `realloc`.
///
/// # Safety
///
/// As for [`free`].
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return allocate(size, HEADER);
    }
    // SAFETY: `allocate` wrote a header before each block.
    let Header { class, start } = unsafe { block.cast::<Header>().sub(1).read() };
    let room = start as usize + (1 << class) - block as usize;
    if size <= room {
        return block;
    }
    let larger = allocate(size, HEADER);
    if !larger.is_null() {
        // SAFETY: two blocks, the old one of `room` bytes and the new one of more; the old one is freed once.
        unsafe {
            larger.copy_from_nonoverlapping(block, room);
            free(block);
        }
    }
    larger
}
