package hns

import "fmt"

// Version is a version of HNS, or of its schema.
type Version struct{ Major, Minor int }

// String returns "major.minor".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// oldest is the first version with the API that is used here (Windows Server
// 2019).
var oldest = Version{9, 2}

// usable tells why a version cannot be used.
func (v Version) usable() error {
	if v.atLeast(oldest.Major, oldest.Minor) {
		return nil
	}
	return fmt.Errorf("this HNS has version %s: %s is needed (Windows Server 2019)", v, oldest)
}

// Features are what a version can do, by the tables of hcsshim
// (hcn/hcnglobals.go) but for Modify. They are worked out here since hcsshim
// remembers for ever that HNS could not be asked.
type Features struct {
	DSR       bool
	DualStack bool
	Affinity  bool
	// Modify changes a load balancer in place. hcsshim (0.14.1, and 0.15.0) says
	// from 15.4, where the call succeeds and changes nothing (kubernetes#131466):
	// its answer is not asked for, and what Modify returns is compared.
	Modify bool
}

// Features returns what a version can do.
func (v Version) Features() Features {
	return Features{
		DSR:       v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2),
		DualStack: v.atLeast(11, 10),
		Affinity:  v.atLeast(12, 0),
		Modify:    v.atLeast(15, 5),
	}
}
