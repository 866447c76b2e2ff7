namespace perigee {}
