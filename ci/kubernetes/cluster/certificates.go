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

// authority signs the certificates of one cluster. They are valid for a day.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// pair is a certificate and its key, both in PEM.
type pair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "tandem-lab"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	der, err := a.sign(a.cert, &key.PublicKey)
	if err != nil {
		return nil, err
	}
	a.pem = encode("CERTIFICATE", der)
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// server returns a certificate for some addresses.
func (a *authority) server(addrs ...netip.Addr) (pair, error) {
	c := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, ip := range addrs {
		c.IPAddresses = append(c.IPAddresses, net.IP(ip.AsSlice()))
	}
	return a.issue(c)
}

// client returns a certificate for a user, which Kubernetes takes from the
// common name, and its groups, from the organizations.
func (a *authority) client(user string, groups ...string) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) issue(c *x509.Certificate) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	der, err := a.sign(c, &key.PublicKey)
	if err != nil {
		return pair{}, err
	}
	private, err := encodeKey(key)
	return pair{cert: encode("CERTIFICATE", der), key: private}, err
}

// sign completes a certificate and signs it.
func (a *authority) sign(c *x509.Certificate, public *ecdsa.PublicKey) ([]byte, error) {
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

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return encode("EC PRIVATE KEY", der), err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeKubeconfig writes a kubeconfig with everything in it.
func writeKubeconfig(path, server string, ca []byte, user api.AuthInfo) error {
	c := api.NewConfig()
	c.Clusters["lab"] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos["user"] = &user
	c.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "user"}
	c.CurrentContext = "lab"
	return clientcmd.WriteToFile(*c, path)
}
