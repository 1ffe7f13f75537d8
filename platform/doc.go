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
//	notify         tells systemd that the proxy is ready, and that it lives
//	settle         once, after the first sync: gives memory back, and ends
//
// modes.go is the same everywhere. platform_linux.go and platform_other.go say
// what differs in flow tables; lock_linux.go and lock_other.go how one tandem
// keeps others out of its network namespace.
package platform
