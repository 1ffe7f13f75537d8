// Package windows is the home of the Windows data planes: HNS load balancer
// policies, userspace relays and facts about a Windows host, one folder each.
// They implement the same contract (core/dataplane) as those under linux, and
// the two never import each other. Nothing is here yet.
package windows
