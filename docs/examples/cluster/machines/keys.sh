#!/bin/sh
# Makes what brokers prove themselves with: sh keys.sh FOLDER NAME...
#
# Each NAME, which is the broker's in the network, gets a folder below FOLDER for /etc/kinmqtt on its machine: a
# certificate, its key, the authority's certificate, the cookie of the cluster, and its address as a variable. FOLDER/ca.key makes further
# certificates: keep it, but on none of these machines. A folder that has been made is left alone.
set -eu
umask 077
folder=$1
shift
mkdir -p "$folder"
cd "$folder"

if [ ! -e cookie ]; then
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=brokers" -out ca.pem \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
    kinmqtt cluster keys cookie > /dev/null
fi

for name in "$@"; do
    [ ! -e "$name" ] || continue
    rm -rf "$name.new"
    mkdir "$name.new"
    openssl ecparam -name prime256v1 -genkey -noout -out "$name.new/broker.key"
    printf '%s\n' "subjectAltName = DNS:$name" "keyUsage = critical,digitalSignature" \
        "extendedKeyUsage = serverAuth,clientAuth" "authorityKeyIdentifier = keyid" > extensions
    openssl req -new -key "$name.new/broker.key" -subj "/CN=$name" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -extfile extensions \
            -out "$name.new/broker.pem" 2> problems || { cat problems >&2; exit 1; }
    cp ca.pem cookie "$name.new"
    echo "KINMQTT__PLUGINS__AKKA_LIKE_CLUSTER__ADVERTISE=$name:4883" > "$name.new/environment"
    mv "$name.new" "$name"
    rm -f extensions problems
    echo "$folder/$name: copy it to $name as /etc/kinmqtt"
done
