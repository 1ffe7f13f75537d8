// Package resolve is the whole Service policy of Tandem: what each address of a
// Service does with a connection, decided once, for every data plane and
// operating system.
//
//	Service ─┐
//	Slices  ─┼─▶ endpoints.go  which endpoints serve a port (conditions, duplicates)
//	Host    ─┘        │
//	             pools.go      the cluster's pool and this node's pool (terminating fallback)
//	             topology.go   narrowed by zone and node hints
//	                  │
//	             fronts.go     which addresses the port answers on
//	             actions.go    for each of them and each origin: Balance, Reject or Drop, SNAT or not, why
//	                  ▼
//	               []*model.Port
//
// Everything here is pure: equal inputs give equal results, byte for byte.
package resolve
