#!/bin/sh
# What the image mysql:8.4 of the node runs: Debian's MariaDB, by the contract of the image `mysql`. The first start makes the
# data, with the password of root; while it does, no port is open.
set -eu
data=/var/lib/mysql
if [ ! -d "$data/mysql" ]; then
    mkdir -p "$data/mysql"
    {
        echo "USE mysql;"
        echo "SET @auth_root_socket=NULL, @skip_auth_anonymous=TRUE;"
        cd /usr/share/mysql
        cat mysql_system_tables.sql mysql_performance_tables.sql mysql_system_tables_data.sql
        echo "DELETE FROM global_priv WHERE User = 'root';"
        echo "INSERT INTO global_priv VALUES ('%', 'root', JSON_OBJECT('access', 18446744073709551615, 'plugin',
            'mysql_native_password', 'authentication_string', PASSWORD('$MYSQL_ROOT_PASSWORD')));"
    } | mariadbd --no-defaults --user=root --datadir="$data" --bootstrap
    echo "made the data"
fi
exec mariadbd --no-defaults --user=root --datadir="$data" --port=3306 --skip-name-resolve "$@"
