// Command bench measures Tandem's ipvs mode beside kube-proxy's, one after the
// other in one boot of a guest (ci/guest), each in a network namespace of
// its own and with the same flags: the time from the start of the process to
// everything programmed, and from one endpoint's change, as the API server tells
// it, to the new destination in the kernel. Afterwards strace, where it is there,
// counts for one more change what is sent over netlink and which programs are
// started.
//
//	objects ─▶ api (a stand-in for the API server) ─▶ proxy ─▶ IPVS
//	              ▲ one endpoint replaced                        │
//	              └────────────────── looked for here ◀──────────┘
//
// The guest's processor is slow and its clock is its own, so only the ratios mean
// something.
package main
