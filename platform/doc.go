// Package platform is the one place where an operating system is chosen. It
// lists the modes, knows what else the system offers (a flow table, facts about
// the host), and puts the pieces of a running proxy together:
//
//	manifests ──▶ engine ──▶ backend of a Mode
//	                │
//	                ├──▶ flows.Cleaner ──▶ the system's flow table
//	                ├──▶ metrics
//	                └──▶ health: /healthz /livez /metrics /status
//
// platform_linux.go, platform_windows.go and platform_other.go say what differs.
package platform
