// Command uml runs a program on a kernel of its own: Debian's user-mode Linux,
// an ordinary process that needs neither privileges nor virtualization. Tests of
// what the machine's kernel lacks, such as IPVS, so run anywhere:
//
//	go test -exec /path/to/uml ./linux/ipvs
//
//	uml ─▶ linux.uml (the kernel; its root is the host's, read-only)
//	          └─▶ init.sh: /proc, /sys, /run, modules on demand
//	                 └─▶ the program, in the directory uml was started in
//
// The guest sees the host's files but can change none, except for a folder of its
// own that goes away with it. Its network is its own and leads nowhere. What the
// program prints comes out as if it ran here, and uml ends with its exit code.
//
// The kernel has one processor and its system calls take some hundred
// microseconds, so times measured inside compare with nothing outside.
package main
