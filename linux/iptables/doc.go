// Package iptables programs Services with iptables.
package iptables
