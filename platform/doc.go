// Package platform is the one place where an operating system is chosen. It
// lists the modes, knows what else the system offers (a flow table, facts about
// the host), and puts the pieces of a running proxy together:
//
//	manifests or API server ──▶ engine ──▶ backend of a Mode
//	                              │
//	                              ├──▶ flows.Cleaner ──▶ the system's flow table
//	                              ├──▶ metrics, Events
//	                              └──▶ health: /healthz /livez /metrics /status, health checks of Services
//
// A running Proxy has these goroutines; Run owns and ends all of them:
//
//	source         watches the folder or the API server, tells the engine's inbox
//	engine         owns tracker and backend: resolves, programs, audits; calls host and the hooks
//	flows cleaner  deletes stale flows after syncs; only in modes with Conntrack
//	health         answers load balancers and kubelets, from the engine's status
//	metrics        answers Prometheus and people, from status and snapshots
//	checks         opens and closes the health check node ports of Services
//	events         writes Events
//	addresses      looks whether this machine's addresses have changed
//	notify         tells systemd that the proxy is ready, and that it lives
//	control        takes orders: an HTTP server, with a goroutine for each; behind it one
//	               accepts connections until the lock is closed
//	tidy           once, after the first sync: removes what was there before in other modes
//	retirement     one for each mode on its way out: waits for its connections, removes it
//	settle         once, after the first sync: gives memory back, and ends
//
// A switch of modes runs on the goroutine that asks for it: an order's, or the one
// that watches the configuration file and calls Reconfigure.
//
// The parts:
//
//	modes.go, choose.go           the modes; which one to run (Choose)
//	userspace.go                  the mode that has several ways
//	proxy.go                      a whole proxy (Open, Run, Close)
//	source.go                     where Services come from
//	facts.go, addresses_*.go      what the machine says of itself, for core/resolve
//	serve.go, tell.go, notify.go  what it answers, tells, and tells systemd
//	ready.go                      the first sync
//	switch.go, reconfigure.go     another mode, another configuration, while it runs
//	control.go, lock_*.go         orders; the one tandem of a place
//	tidy.go                       what earlier runs and kube-proxy have left (RemoveAll)
//	doctor.go                     what works on this machine (Examine)
//	prepare*.go, platform_*.go,   what differs between systems
//	  harden_*.go
package platform
