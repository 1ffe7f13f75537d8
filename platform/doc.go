// SPDX-License-Identifier: Apache-2.0

// Package platform is the one place where an operating system is chosen. It
// lists the modes, knows what else the system offers (a flow table, facts about
// the machine), and puts the pieces of a running proxy together:
//
//	manifests or API server ──▶ engine ──▶ backend of a Mode
//	                              │
//	                              ├──▶ flows.Cleaner ──▶ the system's flow table
//	                              ├──▶ metrics, Events
//	                              └──▶ health: /healthz /livez /metrics /status, health checks of Services
//
// The engine owns the backend in use; everything else asks engine.Current.
//
// # Files
//
//	system.go            the functions of an operating system besides modes, and the addresses of this machine
//	platform_{linux,windows,other}.go
//	                     one system each (thisSystem): its lock and control socket, memory limit, facts for doctor
//	live_linux.go        following a real packet
//	monitor.go, monitor_linux.go
//	                     new connections, for tandem monitor
//	modes.go             the modes: which one to run, another one while Services are in use, what earlier runs have left
//	proxy.go             a whole proxy: what it is made of, Open, Run, Close, another configuration while it runs
//	failover.go          endpoints that stop answering (core/suspect)
//	report.go            how a proxy is seen from outside: metrics, Events, HTTP pages, the service manager
//	memory.go            progress of a long start, and releasing memory
//	control.go           the control socket
//	questions.go         questions to a proxy that runs, and snapshots of it
//	doctor.go            checks of this machine (Examine)
//	simulation.go        a proxy on a machine in memory, for ci/simulate
//
// # Goroutines
//
// Run owns and ends all of them:
//
//	source         watches the folder or the API server, sends events to the engine's inbox
//	engine         owns tracker and backend: resolves, programs, audits; calls host and the hooks
//	flows cleaner  deletes stale flows after syncs; only in modes with Conntrack
//	health         answers load balancers and kubelets, from the engine's status
//	metrics        answers Prometheus and people, from status and snapshots
//	failover       follows new connections and has endpoints ejected that do not answer
//	monitor        while it is asked: looks at new connections, and which frontends reject packets
//	tracing        exports traces of changes, if there is a collector
//	writers        records which other programs write to the data plane
//	progress       until the first sync: logs what a long start waits for
//	checks         opens and closes the health check node ports of Services
//	events         writes Events
//	machine        watches the addresses of this machine
//	systemd        notifies the service manager: ready, status, watchdog
//	control        serves the control socket, with a goroutine for each request; one that reads the
//	               data plane is waited for
//	leftovers      once, after the first sync: removes rules of earlier runs in other modes
//	retirement     one for each old mode: waits for its connections, removes it
//	memory         once, after the first sync: releases memory
//
// A switch of modes runs on the goroutine that requests it: a control request's, or
// the one that watches the configuration file and calls Reconfigure.
//
// A new backend is one folder, one line in modes.go and one recorded plan, a new operating system one more platform_GOOS.go: "Add a
// backend" in .github/CONTRIBUTING.md is the guide, and lists the other places that name modes.
package platform
