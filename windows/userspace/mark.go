package userspace

// lifetime is the valid lifetime in seconds of our addresses: 44 years, a number
// that nobody else would choose. The system counts it down.
const lifetime = 0x54414e44

// slack is how long an address may have been assigned and still be recognised: a
// year without a restart.
const slack = 365 * 24 * 3600

// marked reports whether an address with this remaining lifetime is ours.
func marked(seconds uint32) bool { return seconds <= lifetime && seconds > lifetime-slack }
