// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Authority signs the certificates of one cluster. They are valid for a day.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  []byte // its certificate
}

// Pair is a certificate and its key, both in PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority makes an authority with a key of its own.
func NewAuthority() (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	a := &Authority{key: key, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "tandem-lab"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	der, err := a.sign(a.cert, &key.PublicKey)
	if err != nil {
		return nil, err
	}
	a.PEM = encode("CERTIFICATE", der)
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// Key returns the authority's key in PEM, for programs that sign.
func (a *Authority) Key() ([]byte, error) { return EncodeKey(a.key) }

// Server returns a certificate for some names, the first of which is the subject, and addresses.
func (a *Authority) Server(names []string, addrs ...netip.Addr) (Pair, error) {
	c := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, ip := range addrs {
		c.IPAddresses = append(c.IPAddresses, net.IP(ip.AsSlice()))
	}
	return a.issue(c)
}

// Client returns a certificate for a user, which Kubernetes takes from the
// common name, and its groups, from the organizations.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issue(c *x509.Certificate) (Pair, error) {
	key, err := NewKey()
	if err != nil {
		return Pair{}, err
	}
	der, err := a.sign(c, &key.PublicKey)
	if err != nil {
		return Pair{}, err
	}
	private, err := EncodeKey(key)
	return Pair{Cert: encode("CERTIFICATE", der), Key: private}, err
}

// sign completes a certificate and signs it.
func (a *Authority) sign(c *x509.Certificate, public *ecdsa.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", c.Subject, err)
	}
	return der, nil
}

// NewKey makes a private key.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// EncodeKey returns a private key in PEM.
func EncodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return encode("EC PRIVATE KEY", der), err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// WriteKubeconfig writes a kubeconfig with everything in it.
func WriteKubeconfig(path, server string, ca []byte, user api.AuthInfo) error {
	c := api.NewConfig()
	c.Clusters["lab"] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos["user"] = &user
	c.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "user"}
	c.CurrentContext = "lab"
	return clientcmd.WriteToFile(*c, path)
}
