// Package host is what Tandem asks a Windows node about itself.
package host
