//! Boots that an emulator spoils.
//!
//! Seen once, beside other work: QEMU's translator no longer gave a processor of its machine the interrupts of that processor's
//! timer. Nothing that waits for time goes on there; the kernel finds out after some twenty seconds, and says so. What it says is
//! about its own clock, not about a device that hangs.

/// How often a guest is booted at most until that goes well.
pub const BOOTS_MAX: u32 = 3;

/// What the kernel says (`kernel/rcu/tree_stall.h`) of a thread that sleeps longer than its timer allows.
const LOST_TIMER: &str = "kthread timer wakeup didn't happen for";

/// Whether the console of a guest that has not come up says that a processor lost its timer.
pub fn is_spoiled(console: &str) -> bool {
    console.contains(LOST_TIMER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_timer_is_told_from_a_device_that_hangs() {
        let lost = "[   24.44] rcu: rcu_preempt kthread timer wakeup didn't happen for 5251 jiffies! g-1103 f0x0\n";
        assert!(is_spoiled(lost));
        assert!(!is_spoiled("[  242.66] INFO: task mount:52 blocked for more than 120 seconds.\n"));
        assert!(!is_spoiled("[   24.39] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n"));
    }
}
